"""OTLP traces from whoever exports them: over gRPC (grpc_server.py) and HTTP (http_server.py).

    a request ─► who are you? ─► how large? ─► door.py: is it OTLP, is there room? ─► the queue
                    401            413                400           429
       gRPC    UNAUTHENTICATED  RESOURCE_EXHAUSTED  INVALID_ARGUMENT  RESOURCE_EXHAUSTED + RetryInfo

Spans whose times cannot be are answered as a partial success, the others taken. Metrics and logs are answered
UNIMPLEMENTED (404): an exporter stops sending them.
"""
