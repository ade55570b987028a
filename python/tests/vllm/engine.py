# SPDX-License-Identifier: Apache-2.0
"""A vLLM engine in a process of its own, driven by lines of JSON.

As a module it has the class Engine, for tests. As a program it is that process: it reads a command
a line from its standard input, and writes the answer to the file descriptor that --answers names,
because vLLM writes to standard output as it likes.
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

TOKENS = 24
"""Generated for each prompt."""
BLOCK_TOKENS = 32

ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
    "VLLM_LOGGING_LEVEL": "INFO",
    "HF_HUB_OFFLINE": "1",
}


def connector(locator: str, **settings: Any) -> dict[str, Any]:
    """vLLM's kv_transfer_config for BowheadConnector."""
    return {
        "kv_connector": "RecordingConnector",
        "kv_connector_module_path": "recording",
        "kv_role": "kv_both",
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": {"locator": locator, **settings},
    }


def tier(locator: str) -> dict[str, Any]:
    """vLLM's kv_transfer_config for BowheadTier behind a primary tier of 64 MiB."""
    return {
        "kv_connector": "OffloadingConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {
            "spec_name": "CpuTieringSpec",
            "spec_module_path": "cpu_tiering",
            "cpu_bytes_to_use": 64 << 20,
            "secondary_tiers": [
                {"type": "RecordingTier", "module_path": "recording", "locator": locator}
            ],
        },
    }


class Engine:
    """A running engine. transfer: its kv_transfer_config; None: no pool. workers: of tensor
    parallelism."""

    def __init__(
        self, model: Path, log: Path, transfer: dict[str, Any] | None, *, workers: int = 1
    ) -> None:
        answers, theirs = os.pipe()
        command = [sys.executable, __file__, "--model", str(model), "--answers", str(theirs)]
        environment = {**os.environ, **ENVIRONMENT}
        if transfer is not None:
            command += ["--transfer", json.dumps(transfer)]
        if workers > 1:
            command += ["--workers", str(workers)]
            environment["VLLM_CPU_OMP_THREADS_BIND"] = "|".join(map(str, range(workers)))
        self.log = log
        with log.open("ab") as stream:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=stream,
                stderr=stream,
                pass_fds=[theirs],
                env=environment,
            )
        os.close(theirs)
        self._answers = os.fdopen(answers)

    def call(self, command: str, **arguments: Any) -> Any:
        """Executes a command. An engine that ends instead of answering fails the test."""
        assert self._process.stdin is not None
        line = json.dumps({"command": command, **arguments}) + "\n"
        self._process.stdin.write(line.encode())
        self._process.stdin.flush()
        answer = self._answers.readline()
        assert answer, f"the engine ended; its log, {self.log}:\n{self.log.read_text()[-4000:]}"
        return json.loads(answer)

    def generate(self, prompts: list[list[int]]) -> tuple[list[list[int]], list[int]]:
        """The tokens that follow each prompt, and how many tokens of it were cached, with an empty
        cache of vLLM's own."""
        answer = self.call("generate", prompts=prompts)
        return answer["tokens"], answer["cached"]

    def keys(self) -> list[bytes]:
        """The keys that the connector has stored so far."""
        return [bytes.fromhex(key) for key in self.call("keys")]

    def events(self) -> list[dict[str, Any]]:
        """The KV cache events of the connector so far."""
        return self.call("events")

    def warnings(self) -> list[str]:
        """The warnings of the connector about its pool so far."""
        lines = self.log.read_text(errors="replace").splitlines()
        return [line for line in lines if "WARNING" in line and "[link.py:" in line]

    def close(self) -> int:
        """Ends the engine, and returns its exit status."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            return self._process.wait(60)
        except subprocess.TimeoutExpired:
            self.kill()
            return self._process.returncode
        finally:
            self._answers.close()

    def kill(self) -> None:
        """Kills the engine, if it runs."""
        self._process.kill()
        self._process.wait()

    def __enter__(self) -> "Engine":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--answers", type=int, required=True)
    parser.add_argument("--transfer", type=json.loads)
    parser.add_argument("--workers", type=int, default=1)
    arguments = parser.parse_args()

    from vllm import LLM, SamplingParams
    from vllm.config import KVEventsConfig, KVTransferConfig

    transfer = arguments.transfer and KVTransferConfig(**arguments.transfer)
    llm = LLM(
        model=arguments.model,
        skip_tokenizer_init=True,
        enforce_eager=True,
        block_size=BLOCK_TOKENS,
        max_model_len=512,
        tensor_parallel_size=arguments.workers,
        kv_transfer_config=transfer,
        kv_events_config=KVEventsConfig(enable_kv_cache_events=True, publisher="null"),
    )
    sampling = SamplingParams(temperature=0, max_tokens=TOKENS, ignore_eos=True, detokenize=False)
    with os.fdopen(arguments.answers, "w") as answers:
        for line in sys.stdin:
            request = json.loads(line)
            answer: Any
            if request["command"] == "generate":
                llm.reset_prefix_cache()
                prompts = [{"prompt_token_ids": prompt} for prompt in request["prompts"]]
                outputs = llm.generate(prompts, sampling, use_tqdm=False)
                answer = {
                    "tokens": [list(output.outputs[0].token_ids) for output in outputs],
                    "cached": [output.num_cached_tokens for output in outputs],
                }
            else:
                import recording

                answer = recording.answer(request["command"])
            answers.write(json.dumps(answer) + "\n")
            answers.flush()


if __name__ == "__main__":
    main()
