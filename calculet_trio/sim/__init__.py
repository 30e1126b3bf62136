"""The simulator: the production core and shell in virtual time, against an emulated board with faults.

How fast it is is asked where that is hardest: the reference board, one lane a batch, more clients than it can serve.
A job, with its token, takes the board 25 ms there, and the processor 3.2 to 3.9 yardsticks (`tools/bench_sim`; a
yardstick is a fixed piece of plain Python, and the range is that of a machine with others at work). So it is
85 × real time where a yardstick takes 88 µs, and 100 × wherever it takes less than about 70 µs.

What the time goes to (`tools/bench_sim --profile --seconds 200`; own time of functions, built-ins counted with their
callers; the profiler makes calls dearer than they are):

| room | share | what it does in a job |
|---|---|---|
| ``core`` | 27 % | one event, one plan for one lane: what is per round and not per lane |
| ``trio`` | 18 % | three rounds of its scheduler: the engine's, the loop's and the client's task |
| ``shell`` | 12 % | mailbox, bound of the job, stream |
| ``runtimes`` | 12 % | lane ledger, histories, times of the emulated board, and the faults before it |
| ``sim/checkers`` | 10 % | all that `calculet_trio.sim.checkers` holds, at every event |
| ``sim`` | 6 % | record, clock, clients |
| ``text`` | 4 % | greedy sampling, characters |
| others | 11 % | the standard library, attrs' constructors, numpy |
"""
