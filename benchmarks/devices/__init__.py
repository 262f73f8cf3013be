"""Several devices for one run: a process each, which share the batches of one device.

Every process reads the same batches and computes its part of them (`BenchmarkModule.part`);
losses are added with the weight that each part has in the loss of the whole, and batch norm takes
its statistics over all parts. So the effective batch, the steps and the schedule are those of
one device, also where a batch does not divide evenly. Evaluation is not shared: every process
evaluates everything, which counts each sample once whatever their number, and needs no process to
wait for another.

The process of the run's worker is rank 0. It starts the others (`processes`), which run the same
code over a witness of the run (`witness`), and write nothing. They share the batches alone
(`batches`), or the weights as well (`weights`).
"""
