"""Storage tiers: a stream's history in an object store, beside its newest part on disk.

`metadata` is what is known of the segments there (a state machine, pure), `layout` what the objects look like,
`store` the object store, `copying` and `reading` the two ways through it, `cache` what was fetched, `retention` what
may go. docs/tiered-storage.md has the whole picture; the server's `tiering` drives it.
"""
