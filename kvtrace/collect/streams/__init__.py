"""KV events over ZeroMQ, as they are published: vLLM's, SGLang's and Dynamo's.

    naming.py        --kv-events URL: where to subscribe, where to ask for what was missed
    subscribing.py   one thread reads all subscriptions into the queue
    replaying.py     what is missing is asked for again, where a publisher answers
    discovery.py     Dynamo's folder of channels
    published.py     messages -> rows, by the importer's decoders

A subscriber that is slower than its publisher loses messages, which ZeroMQ tells nobody: the numbers do. A
gap is filled from the publisher's replay endpoint if one is named; what stays missing is a loss.
"""
