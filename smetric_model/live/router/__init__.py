"""The SMetric router: an OpenAI-compatible front for vLLM instances.

========================  =======================================================================
:mod:`.config`            the configuration file
:mod:`.service`           the parts of a running router, put together; start, drain, stop
:mod:`.http_server`       HTTP/1.1 towards clients
:mod:`.http_client`       HTTP/1.1 towards engines
:mod:`.exchange`          one request on its way: attempts, streaming, timeouts, exactly one end
:mod:`.disaggregated`     two-stage dispatch to prefill and decode pools
:mod:`.question`          what a body tells the policy
:mod:`.decide`            hits, loads and policy put together
:mod:`.fleet`             instances and what is charged to them
:mod:`.prefix_table`      which instance holds which element of a chain of keys
:mod:`.approximate`       hits learnt from responses
:mod:`.exact`             hits from KV events
:mod:`.kv_wire`           the wire format of KV events
:mod:`.kv_feed`           subscription, gaps, replay, restart
:mod:`.tokenise`          prompts to tokens, off the event loop
:mod:`.health`            probes and scraped engine metrics
:mod:`.metrics`           Prometheus
:mod:`.admin`             instances at run time
:mod:`.decision_log`      decisions as JSON lines, and their replay
========================  =======================================================================
"""
