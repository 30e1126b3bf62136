"""The simulator: the production core and shell in virtual time, against an emulated board with faults.

How fast it is is asked where that is hardest: the reference board, one lane a batch, more clients than it can serve.
A job, with its token, takes the board 25 ms there, and the processor 2.4 to 2.8 yardsticks (`tools/bench_sim --seconds
600`; a yardstick is a fixed piece of plain Python): 190 × real time where a yardstick takes 50 µs, and 100 × wherever
it takes less than about 90 µs. A day in one sitting, with everything checked, is `simulate --seed 1 --hours 24 --faults
none --profiles 1 --load 1.2`: 11.6 million events and effects in 21 minutes, on two cores that other work kept busy.

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
