"""Self-training, stage by stage: pretrain once, then try settings of the later stages from that checkpoint.

    python benchmarks/self_training.py pretrain --data /tmp/cifar --dataset cifar10 --out PRETRAINED
    python benchmarks/self_training.py run --data /tmp/cifar --pretrained PRETRAINED --out RECORDS plain@128 sharp@128
    python benchmarks/self_training.py epoch-cost --record results/benchmarks/self_training_epoch.json

`pretrain` does what `bagwise benchmark` does first, or takes what that has left, and writes the weights and the
features of all images, in files of at most 14 MiB, and `pretraining.json`. Labels only score: a vote of the 20 nearest
training images, and a linear classifier. `run` takes settings (see SETTINGS) and bag sizes, one after the other, and
writes a record after each. `epoch-cost` measures how the time and the memory of an epoch depend on the bag size.
"""

import argparse
import json
import sys
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch.nn import functional as F

from bagwise.bags import ImageAugment, uniform_bags
from bagwise.bags.random_changes import RandomChanges
from bagwise.experiments.leaderboard.data import load_benchmark_data
from bagwise.experiments.leaderboard.presets import BenchmarkCell
from bagwise.experiments.leaderboard.pretrained import pretrain_for
from bagwise.experiments.leaderboard.running import make_task
from bagwise.experiments.provenance import collect_provenance
from bagwise.experiments.sweep import work_folder
from bagwise.experiments.time_limit import TimeLimit
from bagwise.networks import build_network, split_head
from bagwise.self_training import Contrast, Labelling, probabilities_by_probe, self_train
from bagwise.self_training.em import SELF_TRAINING
from bagwise.training import Evaluator, Recipe, train
from bagwise.training.evaluation import Predictor

LARGEST_FILE = 14 * 2**20


@dataclass(frozen=True)
class Setting:
    """How the later stages go; `kl_epochs` of plain KL replace pretraining and probe where there are any."""

    recipe: Recipe = SELF_TRAINING
    labelling: Labelling = Labelling()  # noqa: RUF009  (frozen)
    kl_epochs: int = 0


SETTINGS = {
    "plain": Setting(),
    "sharp": Setting(labelling=Labelling(temperature=0.5, cut=0.9)),
    "all": Setting(labelling=Labelling(cut=0.0)),
    "all-sharp": Setting(labelling=Labelling(temperature=0.5, cut=0.0)),
    "scratch": Setting(kl_epochs=30),
}


def run_command(arguments):
    data = load_data(arguments)
    weak = data.views.weak
    evaluator = Evaluator(data.test, data.test_labels, normalise=weak.normalise)
    arguments.out.mkdir(parents=True, exist_ok=True)
    pretraining = json.loads((arguments.pretrained / "pretraining.json").read_text())
    for name in arguments.settings:
        torch.compiler.reset()  # each network is compiled anew; their number per process is limited
        key, size = name.split("@")
        setting = SETTINGS[key]
        recipe = replace(setting.recipe, seed=arguments.seed, **on_this_machine())
        if arguments.epochs:
            recipe = replace(recipe, epochs=arguments.epochs)
        bags = uniform_bags(data.train, data.train_labels, data.num_classes, int(size), seed=arguments.seed)
        truth = labels_in_order(data, int(size), arguments.seed)
        network = build_network(pretraining["network"], data.input_shape, data.num_classes, seed=arguments.seed)
        started = time.perf_counter()
        if setting.kl_epochs:
            start = start_from_kl(network, bags, weak, setting.kl_epochs, recipe)
        else:
            load_weights(arguments.pretrained, network)
            network.to("cuda" if torch.cuda.is_available() else "cpu")
            start = probabilities_by_probe(network, bags, weak.normalise, arguments.seed)
        stage2 = {"seconds": time.perf_counter() - started, "accuracy": agreement(start, truth)}
        print(
            f"{name}: start {100 * stage2['accuracy']:.2f} on the training images, {stage2['seconds']:.1f} s",
            flush=True,
        )

        def score_labels(plan, truth=truth):
            return {"accuracy": agreement(plan, truth)}

        result = self_train(
            network,
            bags=bags,
            recipe=recipe,
            augment=weak,
            strong_augment=data.views.strong,
            labelling=setting.labelling,
            start=start,
            evaluator=evaluator,
            label_evaluator=score_labels,
            evaluate_every=arguments.every,
            progress=False,
        )
        seconds = time.perf_counter() - started
        for entry in result.history:
            if "evaluation" in entry:
                print(
                    f"{name} epoch {entry['epoch']:4d}: test {100 * entry['evaluation']['accuracy']:.2f}, "
                    f"labels {100 * entry['labels']['accuracy']:.2f}, sure {entry['sure']:.3f}, "
                    f"bag KL {entry['bag_kl']:.4f}, {entry['seconds']:.2f} s"
                )
        sys.stdout.flush()
        record = {
            "provenance": asdict(collect_provenance()),
            "dataset": data.name,
            "bag_size": int(size),
            "seed": arguments.seed,
            "name": name,
            "setting": asdict(setting),
            "recipe": asdict(recipe),
            "pretraining": None if setting.kl_epochs else {k: pretraining[k] for k in ("seconds", "scores", "recipe")},
            "start": stage2,
            "seconds": round(seconds + (0 if setting.kl_epochs else pretraining["seconds"]), 1),
            "history": [
                {k: round(v, 5) if isinstance(v, float) else v for k, v in entry.items()} for entry in result.history
            ],
        }
        path = arguments.out / f"{data.name}-{key}-{size}-seed{arguments.seed}.json"
        path.write_text(json.dumps(record, indent=1) + "\n")


def load_data(arguments):
    data, n = load_benchmark_data(arguments.dataset, arguments.data), arguments.instances
    few = {name: getattr(data, name)[:n] for name in ("train", "train_labels", "test", "test_labels")}
    return replace(data, **few)


def on_this_machine():
    """What a recipe needs to be fast on a GPU."""
    if not torch.cuda.is_available():
        return {}
    return {"precision": "bf16-mixed", "compile": True, "channels_last": True}


def labels_in_order(data, size, seed):
    """The labels of the training images in the order in which `uniform_bags` lays them out."""
    numbers = torch.arange(len(data.train))
    return data.train_labels[uniform_bags(numbers, data.train_labels, data.num_classes, size, seed=seed).instances]


def agreement(probabilities, truth):
    return float((probabilities.argmax(dim=1).cpu() == truth).float().mean())


def start_from_kl(network, bags, augment, epochs, recipe):
    """Train the network by KL and return what it thinks of the training images."""
    batch = max(recipe.batch_instances, int(bags.layout.host_sizes.max()))
    short = replace(recipe, epochs=epochs, batch_instances=batch, schedule="one-cycle", drop_last=True)
    train(network, bags=bags, method="kl", recipe=short, augment=augment, progress=False)
    with torch.autocast("cuda", torch.bfloat16, enabled=torch.cuda.is_available()):
        return Predictor(bags.instances, augment.normalise).logits(network).softmax(dim=1)


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


def pretrain_command(arguments):
    data = load_data(arguments)
    cell = BenchmarkCell(arguments.dataset, arguments.preset, "self-training", "uniform", 16, arguments.seed)
    task = make_task(cell, data)  # no bag has a part in it
    pretrained = pretrain_for(
        task,
        task.views.contrastive,
        work_folder(arguments.records, cell),
        TimeLimit(),
        lambda what, passes: print(f"{what}: {passes:.0f} passes", flush=True),
    )
    arguments.out.mkdir(parents=True, exist_ok=True)
    save_weights(arguments.out, pretrained.network)
    features = {
        split: features_of(pretrained.network, images, task.normalised)
        for split, images in (("train", data.train), ("test", data.test))
    }
    save_features(arguments.out, features)
    labels = {"train": data.train_labels, "test": data.test_labels}
    scores = {"20-NN": neighbour_accuracy(features, labels), "linear": linear_accuracy(features, labels)}
    epoch_seconds = [round(entry["seconds"], 3) for entry in pretrained.history]
    print(f"{sum(epoch_seconds):.1f} s; " + ", ".join(f"{name} {100 * score:.2f}" for name, score in scores.items()))
    record = {
        "provenance": asdict(collect_provenance()),
        "dataset": data.name,
        "instances": len(data.train),
        "network": task.network,
        "recipe": asdict(pretrained.recipe),
        "contrast": asdict(Contrast()),
        "views": asdict(task.views.contrastive),
        "seconds": round(sum(epoch_seconds), 1),
        "epoch_seconds": epoch_seconds,
        "loss": [round(entry["loss"], 4) for entry in pretrained.history],
        "scores": scores,
    }
    (arguments.out / "pretraining.json").write_text(json.dumps(record, indent=1) + "\n")


def save_weights(folder, network):
    """Write the weights in bfloat16, all else (biases, norms) as it is; files stay below the limit."""
    tensors = {
        name: tensor.detach().cpu().contiguous().to(torch.bfloat16 if tensor.ndim > 1 else tensor.dtype)
        for name, tensor in network.state_dict().items()
    }
    part, parts, filled = {}, [], 0
    for name, tensor in tensors.items():
        if part and filled + tensor.nbytes > LARGEST_FILE:
            parts.append(part)
            part, filled = {}, 0
        part[name] = tensor
        filled += tensor.nbytes
    for number, tensors in enumerate([*parts, part]):
        save_file(tensors, folder / f"weights-{number}.safetensors")


def load_weights(folder, network):
    tensors = {}
    for path in sorted(folder.glob("weights-*.safetensors")):
        tensors |= load_file(path)
    network.load_state_dict(tensors)


def save_features(folder, features):
    for split, values in features.items():
        half = values.to(torch.float16).cpu()
        rows = LARGEST_FILE // (2 * half.shape[1])
        for number, part in enumerate(half.split(rows)):
            save_file({"features": part.contiguous()}, folder / f"features-{split}-{number}.safetensors")


def features_of(network, images, normalise):
    """Features of images as they are, `[n, d]` float32."""
    with torch.autocast("cuda", torch.bfloat16, enabled=torch.cuda.is_available()):
        return Predictor(images, normalise).logits(split_head(network)[0])


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


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(required=True)
    command = commands.add_parser("pretrain", help="as `bagwise benchmark` does; writes weights and features")
    command.set_defaults(run=pretrain_command)
    command.add_argument("--data", type=Path, help="folder of the official files")
    command.add_argument("--dataset", default="cifar10")
    command.add_argument("--instances", type=int, help="only the first so many images of each split")
    command.add_argument("--preset", default="full", help="of the leaderboard")
    command.add_argument("--seed", type=int, default=0)
    command.add_argument("--records", type=Path, default=Path("results"), help="where `bagwise benchmark` works")
    command.add_argument("--out", type=Path, required=True)
    command = commands.add_parser("run", help="self-training from a pretrained network, by settings")
    command.set_defaults(run=run_command)
    command.add_argument("settings", nargs="+", help=f"name@bag size; names: {', '.join(SETTINGS)}")
    command.add_argument("--data", type=Path, help="folder of the official files")
    command.add_argument("--dataset", default="cifar10")
    command.add_argument("--instances", type=int, help="only the first so many images of each split")
    command.add_argument("--pretrained", type=Path, required=True, help="what `pretrain` wrote")
    command.add_argument("--epochs", type=int, help="in place of the settings' own")
    command.add_argument("--seed", type=int, default=0)
    command.add_argument("--every", type=int, default=10, help="epochs between evaluations")
    command.add_argument("--out", type=Path, required=True)
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
