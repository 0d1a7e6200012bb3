"""Parts of self-training apart from the leaderboard: its pretraining to take along, what that is worth, what it costs.

    python benchmarks/self_training.py pretrain --data /tmp/cifar --dataset cifar10 --out PRETRAINED
    python benchmarks/self_training.py restore --pretrained PRETRAINED
    python benchmarks/self_training.py features --data /tmp/cifar --pretrained PRETRAINED
    python benchmarks/self_training.py from-kl --data /tmp/cifar --dataset cifar10 --bag-size 16 --out RECORDS
    python benchmarks/self_training.py epoch-cost --record results/benchmarks/self_training_epoch.json

`pretrain` does what `bagwise benchmark` does first, or takes what that has left, and writes the weights in files of at
most 14 MiB and `pretraining.json`. Labels only score: a vote of the 20 nearest training images, and a linear
classifier. `restore` puts that where `bagwise benchmark` finds it, on another machine. `features` writes the features
of all images, which benchmarks/probe.py reads. `from-kl` is the leaderboard's self-training with a training by KL in
place of pretraining and probe, as on tables: same bags, same budget. `epoch-cost` measures how the time and the memory
of an epoch depend on the bag size.
"""

import argparse
import json
from dataclasses import asdict, replace
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch.nn import functional as F

from bagwise.bags import ImageAugment, uniform_bags
from bagwise.bags.random_changes import RandomChanges
from bagwise.experiments.leaderboard.data import load_benchmark_data
from bagwise.experiments.leaderboard.presets import BenchmarkCell
from bagwise.experiments.leaderboard.pretrained import pretrain_for
from bagwise.experiments.leaderboard.running import make_task, run_benchmark_cell
from bagwise.experiments.provenance import collect_provenance
from bagwise.experiments.records import write_record
from bagwise.experiments.sweep import work_folder
from bagwise.experiments.time_limit import TimeLimit
from bagwise.networks import build_network, split_head
from bagwise.self_training import Contrast, self_train
from bagwise.self_training.em import SELF_TRAINING
from bagwise.training.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from bagwise.training.evaluation import Predictor
from bagwise.training.folder import RunFolder

LARGEST_FILE = 14 * 2**20


def load_data(arguments):
    data, n = load_benchmark_data(arguments.dataset, arguments.data), arguments.instances
    few = {name: getattr(data, name)[:n] for name in ("train", "train_labels", "test", "test_labels")}
    return replace(data, **few)


def pretrain_command(arguments):
    data = load_data(arguments)
    cell = BenchmarkCell(arguments.dataset, arguments.preset, "self-training", "uniform", 16, arguments.seed)
    task = make_task(cell, data)  # no bag has a part in it
    work = work_folder(arguments.records, cell)
    pretrained = pretrain_for(task, task.views.contrastive, work, TimeLimit(), say)
    folder = RunFolder(work / f"pretrained-seed{arguments.seed}-{pretrained.key}")
    arguments.out.mkdir(parents=True, exist_ok=True)
    checkpoint = save_weights(arguments.out, load_checkpoint(folder.checkpoint))
    features = features_of(pretrained.network, data)
    labels = {"train": data.train_labels, "test": data.test_labels}
    scores = {"20-NN": neighbour_accuracy(features, labels), "linear": linear_accuracy(features, labels)}
    seconds = sum(entry["seconds"] for entry in pretrained.history)
    print(f"{seconds:.1f} s; " + ", ".join(f"{name} {100 * score:.2f}" for name, score in scores.items()))
    record = {
        "provenance": asdict(collect_provenance()),
        "cell": asdict(cell),
        "instances": len(data.train),
        "network": task.network,
        "recipe": asdict(pretrained.recipe),
        "contrast": asdict(Contrast()),
        "views": asdict(task.views.contrastive),
        "seconds": round(seconds, 1),
        "scores": scores,
        "folder": folder.path.name,
        "checkpoint": checkpoint,
        "log": pretrained.history,
    }
    (arguments.out / "pretraining.json").write_text(json.dumps(record, indent=1) + "\n")


def say(what, passes):
    print(f"{what}: {passes:.0f} passes", flush=True)


def save_weights(folder, checkpoint):
    """Write the body's averaged weights, all that is of use after pretraining; return what restores the rest."""
    weights = checkpoint.part("average.body")
    part, parts, filled = {}, [], 0
    for name, tensor in weights.items():
        if part and filled + tensor.nbytes > LARGEST_FILE:
            parts.append(part)
            part, filled = {}, 0
        part[name] = tensor.contiguous()
        filled += tensor.nbytes
    for number, tensors in enumerate([*parts, part]):
        save_file(tensors, folder / f"weights-{number}.safetensors")
    return {
        "run": checkpoint.run,
        "epochs": checkpoint.epochs,
        "updates": checkpoint.updates,
        "shapes": {
            name: [str(tensor.dtype).removeprefix("torch."), list(tensor.shape)]
            for name, tensor in checkpoint.tensors.items()
        },
    }


def load_weights(folder):
    """The weights of the body, by name."""
    return {
        name: tensor
        for path in sorted(folder.glob("weights-*.safetensors"))
        for name, tensor in load_file(path).items()
    }


def restore_command(arguments):
    record = json.loads((arguments.pretrained / "pretraining.json").read_text())
    saved, weights = record["checkpoint"], load_weights(arguments.pretrained)
    # of a run that has ended, the optimizer, the projector and the student are never looked at again
    tensors = {
        name: torch.zeros(shape, dtype=getattr(torch, dtype)) for name, (dtype, shape) in saved["shapes"].items()
    }
    for name, tensor in weights.items():
        tensors[f"average.body.{name}"] = tensors[f"network.body.{name}"] = tensor
    folder = RunFolder(work_folder(arguments.records, BenchmarkCell(**record["cell"])) / record["folder"])
    folder.path.mkdir(parents=True, exist_ok=True)
    folder.log.write_text("".join(f"{json.dumps(entry)}\n" for entry in record["log"]))
    save_checkpoint(folder.checkpoint, Checkpoint(saved["run"], saved["epochs"], saved["updates"], tensors))
    print(folder.path)


def features_command(arguments):
    record = json.loads((arguments.pretrained / "pretraining.json").read_text())
    data = load_benchmark_data(record["cell"]["dataset"], arguments.data)
    network = build_network(record["network"], data.input_shape, data.num_classes, seed=0)
    network.load_state_dict(load_weights(arguments.pretrained), strict=False)  # all but the head, which has no part
    for split, values in features_of(network.to("cuda" if torch.cuda.is_available() else "cpu"), data).items():
        half = values.to(torch.float16).cpu()
        rows = LARGEST_FILE // (2 * half.shape[1])
        for number, part in enumerate(half.split(rows)):
            save_file({"features": part.contiguous()}, arguments.pretrained / f"features-{split}-{number}.safetensors")


def features_of(network, data):
    """Features of the images as they are, `[n, d]` float32, by split."""
    body = split_head(network)[0].eval()
    with torch.autocast("cuda", torch.bfloat16, enabled=torch.cuda.is_available()):
        return {
            split: Predictor(images, data.views.weak.normalise).logits(body)
            for split, images in (("train", data.train), ("test", data.test))
        }


def neighbour_accuracy(features, labels, neighbours=20):
    """How often the majority of the nearest training images, by cosine, has the label of a test image."""
    train, test = (F.normalize(features[split].float(), dim=1) for split in ("train", "test"))
    of_train, of_test = labels["train"].to(train.device), labels["test"].to(train.device)
    right = 0
    for start in range(0, len(test), 1000):
        nearest = (test[start : start + 1000] @ train.T).topk(neighbours, dim=1).indices
        votes = F.one_hot(of_train[nearest], int(of_train.max()) + 1).sum(dim=1)
        right += int((votes.argmax(dim=1) == of_test[start : start + 1000]).sum())
    return right / len(test)


def linear_accuracy(features, labels, steps=500):
    """Test accuracy of a linear classifier of the standardised features, trained with labels on all rows at once."""
    train, test = (features[split].float() for split in ("train", "test"))
    mean, std = train.mean(dim=0), train.std(dim=0).clamp(min=1e-6)
    train, test = (train - mean) / std, (test - mean) / std
    target = labels["train"].to(train.device)
    head = torch.nn.Linear(train.shape[1], int(target.max()) + 1).to(train.device)
    torch.nn.init.zeros_(head.weight)
    optimizer = torch.optim.AdamW(head.parameters(), lr=0.01, weight_decay=1e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in range(steps):
        optimizer.zero_grad()
        F.cross_entropy(head(train), target).backward()
        optimizer.step()
        schedule.step()
    return float((head(test).argmax(dim=1) == labels["test"].to(test.device)).float().mean())


def from_kl_command(arguments):
    data = load_data(arguments)
    data = replace(data, views=replace(data.views, contrastive=None))
    cell = BenchmarkCell(
        arguments.dataset, arguments.preset, "self-training", "uniform", arguments.bag_size, arguments.seed
    )
    record = run_benchmark_cell(cell, work_folder(arguments.out, cell), TimeLimit(), say, data={data.name: data})
    write_record(arguments.out, record)
    print(f"{100 * record.final.accuracy:.2f}, {record.seconds:.0f} s, {record.selection.criterion}")


def epoch_cost_command(arguments):
    generator = torch.Generator().manual_seed(0)  # the time does not depend on what the pictures show
    shape = (arguments.instances, 3, 32, 32)
    images = torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)
    labels = torch.randint(10, (arguments.instances,), generator=generator)
    weak = ImageAugment((0.5,) * 3, (0.25,) * 3, shift=4)
    strong = RandomChanges((0.5,) * 3, (0.25,) * 3, shift=4)
    rows = []
    for size in arguments.bag_sizes:
        torch.compiler.reset()
        bags = uniform_bags(images, labels, 10, size, seed=0)
        if torch.cuda.is_available():
            torch.cuda.reset_peak_memory_stats()
        result = self_train(
            build_network(arguments.network, shape[1:], num_classes=10, seed=0),
            bags=bags,
            recipe=replace(SELF_TRAINING, epochs=arguments.epochs, **on_this_machine()),
            augment=weak,
            strong_augment=strong,
            start=torch.full((bags.num_instances, 10), 0.1),
            progress=False,
        )
        seconds = min(entry["seconds"] for entry in result.history[1:])  # the first one compiles
        memory = torch.cuda.max_memory_allocated() if torch.cuda.is_available() else None
        rows.append({"bag_size": size, "bags": bags.num_bags, "epoch_seconds": seconds, "peak_bytes": memory})
        print(f"bags of {size:6d}: {seconds:.3f} s an epoch, peak memory {memory or 0:,} bytes", flush=True)
    if arguments.record:
        record = {"provenance": asdict(collect_provenance()), "network": arguments.network, "instances": shape[0]}
        arguments.record.write_text(json.dumps({**record, "rows": rows}, indent=1) + "\n")


def on_this_machine():
    """What a recipe needs to be fast on a GPU."""
    if not torch.cuda.is_available():
        return {}
    return {"precision": "bf16-mixed", "compile": True, "channels_last": True}


def add_cell(command):
    command.add_argument("--data", type=Path, help="folder of the official files")
    command.add_argument("--dataset", default="cifar10")
    command.add_argument("--instances", type=int, help="only the first so many images of each split")
    command.add_argument("--preset", default="full", help="of the leaderboard")
    command.add_argument("--seed", type=int, default=0)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(required=True)
    command = commands.add_parser("pretrain", help="as `bagwise benchmark` does; writes weights and scores")
    command.set_defaults(run=pretrain_command)
    add_cell(command)
    command.add_argument("--records", type=Path, default=Path("results"), help="where `bagwise benchmark` works")
    command.add_argument("--out", type=Path, required=True)
    command = commands.add_parser("restore", help="put it where `bagwise benchmark` finds it")
    command.set_defaults(run=restore_command)
    command.add_argument("--pretrained", type=Path, required=True, help="what `pretrain` wrote")
    command.add_argument("--records", type=Path, default=Path("results"), help="where `bagwise benchmark` works")
    command = commands.add_parser("features", help="write the features of all images beside the weights")
    command.set_defaults(run=features_command)
    command.add_argument("--data", type=Path, help="folder of the official files")
    command.add_argument("--pretrained", type=Path, required=True, help="what `pretrain` wrote")
    command = commands.add_parser("from-kl", help="self-training after KL, without pretraining")
    command.set_defaults(run=from_kl_command)
    add_cell(command)
    command.add_argument("--bag-size", type=int, required=True)
    command.add_argument("--out", type=Path, required=True, help="folder of the records")
    command = commands.add_parser("epoch-cost", help="time and memory of an epoch against the bag size")
    command.set_defaults(run=epoch_cost_command)
    command.add_argument("--network", default="resnet18")
    command.add_argument("--instances", type=int, default=50_000)
    command.add_argument("--bag-sizes", type=int, nargs="+", default=[16, 128, 1024, 4096, 25_000])
    command.add_argument("--epochs", type=int, default=4)
    command.add_argument("--record", type=Path, help="also write the measurements to this JSON file")
    arguments = parser.parse_args()
    arguments.run(arguments)


if __name__ == "__main__":
    main()
