"""Log files of engines, for those who have nothing else: what vLLM and LMCache say of their caches.

    (EngineCore pid=12) INFO 11-30 04:06:28 [core.py:402] ...                  vLLM: no year, whole seconds
    [2026-11-30 04:06:31,780] LMCache INFO: ... (mq.py:12:lmcache.v1.mq)       LMCache, also inside vLLM's

    forms.py      a line -> a record: whose, when, where in the code, what
    clock.py      its time as unix ns
    rules.py      which messages mean something: by their first word, then their whole form
    vllm.py, requests.py, lmcache_client.py, lmcache_inprocess.py, lmcache_server.py   what they mean
    log.py        what a log has said so far, and its rows
    health.py     how the engine sees its cache: intervals out of lines
    reading.py    a file

The formats are `vllm_log` and `lmcache_log`: both read both kinds of line, a log of vLLM holds LMCache's
client. Engine and process are named after the file, with the pid that vLLM writes; importer/log_lines.py
finds their engine. The messages are those of vLLM 0.32 and LMCache 0.5.5, read in their source;
tests/unit/sources/recorded/ says which of them were recorded. A row names the line of the engine's code that
wrote it (attribute `log_line`). A transfer is an operation only where its line names the request: of what is
nobody's a request that is not named may have had its part.
"""
