"""What a run did: its outcome as data, its events, and how both are shown."""
