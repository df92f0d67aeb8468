"""Plain Python, numpy and Arrow: everything that decides or transforms, without Spark and without a socket."""
