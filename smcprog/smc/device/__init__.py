"""Rounds whose shapes never change and that never wait for the host: one launch a round.

`wave.py` plays them for a wave of requests, `program.py` is what is captured and replayed,
`suits.py` says for which calls.
"""
