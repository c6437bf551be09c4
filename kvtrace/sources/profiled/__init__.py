"""What a profiler of the device saw: its memory copies as loads and stores, and for which request each was.

    range   |--- kvtrace:req-7:load ---|        a thread says for whom it works          names.py
    call        |cudaMemcpyAsync|               that thread asks for a copy
                       | correlation id
    copy               ....|======|             the device makes it, later               hops.py, rows.py

A copy is a request's only along that chain: its correlation id leads to the call that asked for it, the call
lies inside a range of its own thread, and the range names the request. That a copy and a range overlap says
nothing, and joins nothing. What shares a correlation id with calls of two threads is not joined.

    kvtrace:<id>:load|store         what kvtrace itself annotates (KVTRACE_NVTX, KVTRACE_PROFILER)
    kvtrace:<id>,<id>:load|store    the same for several requests: the copy serves all of them
    request:<id>  request=<id>  request_id:<id>  request_id=<id>     anybody's; the id has no white space

The innermost range that names a request counts. A copy inside a CUDA graph has no call of its own, only the
launch of the whole graph, which serves whom the graph was captured for, not whom the thread works for now:
it is nobody's (attribution aggregate) and says so (attribute `cuda_graph`).

    columns of copies: start_ns end_ns bytes name device from_device stream correlation owner graph seen_in
    columns of calls:  start_ns name correlation owner thread process
    columns of ranges: start_ns end_ns name thread process domain

`owner` is whoever numbers the correlation ids, `thread` a thread of one process, `seen_in` the process of a
copy where the profiler says it.
"""
