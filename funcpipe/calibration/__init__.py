"""A run held beside what was predicted of it: `observed` says what it took, from its timeline;
`compare` puts the performance model's figures beside; `correct` makes a profile that predicts it;
`folder` does all of it for a run's folder.
"""
