"""Search hyper-parameters with Ray Tune: several trials at a time, one process each; bad trials stop early.

    python ray_tune_search.py data --trials 64 --jobs 8

``data`` has ``train`` and ``val``, each with one subfolder of images per class. All trials make the same two loaders,
so each image is prepared once for all trials that run at that time, and trials may start and end at any moment. Ray
moves each trial to a working directory of its own, so the path of the data must be absolute.
"""

import argparse
import os
import tempfile
from pathlib import Path

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"  # one machine, so Ray listens only on the loopback address

import ray
import torch
from coprep import DataLoader
from ray import tune
from ray.tune.schedulers import ASHAScheduler
from torch import nn
from torchvision import transforms
from torchvision.datasets import ImageFolder
from torchvision.models.resnet import BasicBlock, ResNet


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path, help="folder with train and val")
    parser.add_argument("--trials", type=int, default=32)
    parser.add_argument("--jobs", type=int, default=4, help="trials at a time")
    parser.add_argument("--epochs", type=int, default=27, help="of a trial that is not stopped early")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--size", type=int, default=128, help="side of the images in pixels")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--threads", type=int, default=1, help="of PyTorch on the CPU, per trial")
    parser.add_argument("--storage", type=Path, default=Path(tempfile.gettempdir(), "ray-results"))
    return parser.parse_args()


def make_loader(args: argparse.Namespace, split: str, *operators: nn.Module) -> DataLoader:
    dataset = ImageFolder(args.data / split, transforms.Compose([*operators, transforms.ToTensor()]))
    return DataLoader(dataset, args.batch_size, shuffle=split == "train", num_workers=args.workers)


def make_model(dataset: ImageFolder) -> nn.Module:
    return ResNet(BasicBlock, [1, 1, 1, 1], num_classes=len(dataset.classes))


def trial(config: dict[str, float], args: argparse.Namespace) -> None:
    torch.set_num_threads(args.threads)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    train = make_loader(args, "train", transforms.RandomResizedCrop(args.size), transforms.RandomHorizontalFlip())
    val = make_loader(args, "val", transforms.Resize(args.size), transforms.CenterCrop(args.size))
    model = make_model(train.dataset).to(device)
    optimizer = torch.optim.SGD(model.parameters(), **config)
    for _ in range(args.epochs):
        model.train()
        for images, labels in train:
            loss = nn.functional.cross_entropy(model(images.to(device)), labels.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        tune.report({"accuracy": evaluate(model, val, device)})


def evaluate(model: nn.Module, loader: DataLoader, device: torch.device) -> float:
    model.eval()
    with torch.inference_mode():
        right = sum((model(images.to(device)).argmax(1).cpu() == labels).sum().item() for images, labels in loader)
    return right / len(loader.dataset)


def main() -> None:
    args = arguments()
    args.data = args.data.resolve()
    ray.init(num_cpus=args.jobs * args.threads, include_dashboard=False)
    resources = {"cpu": args.threads, "gpu": min(1, torch.cuda.device_count() / args.jobs)}
    tuner = tune.Tuner(
        tune.with_resources(tune.with_parameters(trial, args=args), resources),
        param_space={
            "lr": tune.loguniform(1e-4, 1),
            "momentum": tune.uniform(0, 0.99),
            "weight_decay": tune.loguniform(1e-6, 1e-2),
        },
        tune_config=tune.TuneConfig(
            metric="accuracy",
            mode="max",
            scheduler=ASHAScheduler(max_t=args.epochs, grace_period=1, reduction_factor=3),
            num_samples=args.trials,
            # A process that serves several trials imports PyTorch once.
            reuse_actors=True,
        ),
        run_config=tune.RunConfig(storage_path=str(args.storage.resolve()), verbose=0),
    )
    results = tuner.fit()
    if results.errors:
        raise results.errors[0]
    complete = sum(result.metrics["training_iteration"] == args.epochs for result in results)
    best = results.get_best_result()
    print(
        f"{complete} complete, {len(results) - complete} stopped early, "
        f"best accuracy {best.metrics['accuracy']:.3f} with {best.config}"
    )
    ray.shutdown()


if __name__ == "__main__":
    main()
