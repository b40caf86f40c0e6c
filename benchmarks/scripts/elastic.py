"""The same training as `plain.py` with the SDK: survivors have the state, saves are made only if asked for."""

import time

import torch
from torch import nn
from workload import BATCH, Data, Settings, StepFile, build, parse_settings

import shoal.torch as elastic


def main(settings: Settings) -> None:
    model = build(settings)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    data, finished = Data(), StepFile(settings.steps)

    @elastic.run
    def train(state: elastic.State) -> None:
        while True:
            for micro in state.micro_batches():
                assert micro.samples is not None
                inputs, labels = data.batch(micro.samples.start // BATCH)
                loss = nn.functional.cross_entropy(model(inputs), labels)
                loss.backward()  # type: ignore[no-untyped-call]
            time.sleep(settings.pace)
            state.commit()
            finished.finished(state.step, state.rank, state.size)
            if settings.save_every and state.step % settings.save_every == 0:
                state.save()

    train(elastic.State(model=model, optimizer=optimizer, micro_batches="world", micro_batch_size=BATCH, metrics=()))


if __name__ == "__main__":
    main(parse_settings())
