"""Are the tests any good? Each mutant breaks one safety rule in one place, and the fast tests must notice.

mutants.toml   the mutants: what is replaced by what, and the promise that breaks
mutant.py      reading and applying them
__main__.py    `make mutants`: runs the fast tests against each one in a scratch copy of the tree
witness.py     rides along in that run: checks that it is the mutated code that runs, and notes which test failed
"""
