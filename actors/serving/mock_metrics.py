"""/metrics of the mock server: vLLM's names, types, labels and buckets (0.32), from its batch."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from actors.serving.mock_batch import Batch

E2E_BUCKETS_S = (0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480)
TTFT_BUCKETS_S = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 10)
ITL_BUCKETS_S = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 10)
FINISH_REASONS = ("stop", "length", "abort", "error")


class MockMetrics:
    """Counts requests; renders the exposition text."""

    def __init__(self, batch: Batch, *, model: str) -> None:
        self._batch = batch
        self._registry = CollectorRegistry()
        self._labels = {"model_name": model, "engine": "0"}
        self._running = self._gauge("num_requests_running", "Requests in execution batches.")
        self._waiting = self._gauge("num_requests_waiting", "Requests waiting to be processed.")
        self._kv_usage = self._gauge("kv_cache_usage_perc", "KV-cache usage. 1 is all of it.")
        self._prompt = self._counter("prompt_tokens", "Prefill tokens processed.")
        self._generated = self._counter("generation_tokens", "Generation tokens processed.")
        self._counter("num_preemptions", "Preemptions.")  # the mock never preempts
        self._e2e = self._histogram("e2e_request_latency_seconds", E2E_BUCKETS_S)
        self._ttft = self._histogram("time_to_first_token_seconds", TTFT_BUCKETS_S)
        self._itl = self._histogram("inter_token_latency_seconds", ITL_BUCKETS_S)
        finished = Counter(
            "vllm:request_success",
            "Requests finished.",
            [*self._labels, "finished_reason"],
            registry=self._registry,
        )
        self._finished = {
            reason: finished.labels(**self._labels, finished_reason=reason)
            for reason in FINISH_REASONS
        }

    def first_token(self, *, after_s: float, prompt_tokens: int) -> None:
        self._ttft.observe(after_s)
        self._prompt.inc(prompt_tokens)
        self._generated.inc()

    def next_token(self, *, gap_s: float) -> None:
        self._itl.observe(gap_s)
        self._generated.inc()

    def finish(self, reason: str, *, after_s: float) -> None:
        self._e2e.observe(after_s)
        self._finished[reason].inc()

    def render(self) -> str:
        self._running.set(len(self._batch.running))
        self._waiting.set(len(self._batch.waiting))
        self._kv_usage.set(self._batch.kv_usage)
        return generate_latest(self._registry).decode()

    def _gauge(self, name: str, text: str) -> Gauge:
        made = Gauge(f"vllm:{name}", text, list(self._labels), registry=self._registry)
        return made.labels(**self._labels)

    def _counter(self, name: str, text: str) -> Counter:
        made = Counter(f"vllm:{name}", text, list(self._labels), registry=self._registry)
        return made.labels(**self._labels)

    def _histogram(self, name: str, buckets_s: tuple[float, ...]) -> Histogram:
        made = Histogram(
            f"vllm:{name}",
            f"Histogram of {name}.",
            list(self._labels),
            registry=self._registry,
            buckets=buckets_s,
        )
        return made.labels(**self._labels)
