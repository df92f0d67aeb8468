"""One node: connections, request handlers, streams, and the engine that drives disk and consensus."""
