"""What a hostile job, visitor or agent tries against a running site; see `benchmarks.intrusion`."""
