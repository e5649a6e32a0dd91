"""Search hyper-parameters with Optuna: several trials at a time, one process each; bad trials stop early.

    python optuna_search.py data --trials 64 --jobs 8

``data`` has ``train`` and ``val``, each with one subfolder of images per class. All trials make the same two loaders,
so each image is prepared once for all trials that run at that time, and trials may start and end at any moment. The
study is kept in a file: start the script again, or several times at once, and it continues the same study.
"""

import argparse
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import optuna
import torch
from coprep import DataLoader
from optuna.storages.journal import JournalFileBackend, JournalStorage
from optuna.trial import TrialState
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
    parser.add_argument("--journal", default="search.journal", help="file of the study")
    return parser.parse_args()


def make_loader(args: argparse.Namespace, split: str, *operators: nn.Module) -> DataLoader:
    dataset = ImageFolder(args.data / split, transforms.Compose([*operators, transforms.ToTensor()]))
    # In a spawned process workers are spawned too, and import PyTorch anew, unless the loader says otherwise.
    return DataLoader(
        dataset, args.batch_size, shuffle=split == "train", num_workers=args.workers, multiprocessing_context="fork"
    )


def objective(trial: optuna.Trial, args: argparse.Namespace) -> float:
    torch.set_num_threads(args.threads)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    train = make_loader(args, "train", transforms.RandomResizedCrop(args.size), transforms.RandomHorizontalFlip())
    val = make_loader(args, "val", transforms.Resize(args.size), transforms.CenterCrop(args.size))
    model = ResNet(BasicBlock, [1, 1, 1, 1], num_classes=len(train.dataset.classes)).to(device)
    optimizer = torch.optim.SGD(
        model.parameters(),
        lr=trial.suggest_float("lr", 1e-4, 1, log=True),
        momentum=trial.suggest_float("momentum", 0, 0.99),
        weight_decay=trial.suggest_float("weight_decay", 1e-6, 1e-2, log=True),
    )
    accuracy = 0.0
    for epoch in range(1, args.epochs + 1):
        model.train()
        for images, labels in train:
            loss = nn.functional.cross_entropy(model(images.to(device)), labels.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        accuracy = evaluate(model, val, device)
        trial.report(accuracy, epoch)
        if trial.should_prune():
            raise optuna.TrialPruned
    return accuracy


def evaluate(model: nn.Module, loader: DataLoader, device: torch.device) -> float:
    model.eval()
    with torch.inference_mode():
        right = sum((model(images.to(device)).argmax(1).cpu() == labels).sum().item() for images, labels in loader)
    return right / len(loader.dataset)


def open_study(journal: str) -> optuna.Study:
    return optuna.create_study(
        study_name="resnet",
        storage=JournalStorage(JournalFileBackend(journal)),
        pruner=optuna.pruners.SuccessiveHalvingPruner(min_resource=1, reduction_factor=3),
        direction="maximize",
        load_if_exists=True,
    )


def run_trial(_: int, args: argparse.Namespace) -> None:
    open_study(args.journal).optimize(partial(objective, args=args), n_trials=1)


def main() -> None:
    args = arguments()
    study = open_study(args.journal)
    with ProcessPoolExecutor(args.jobs, mp_context=get_context("spawn")) as processes:
        list(processes.map(partial(run_trial, args=args), range(args.trials)))
    complete, pruned = (len(study.get_trials(states=[s])) for s in (TrialState.COMPLETE, TrialState.PRUNED))
    print(f"{complete} complete, {pruned} pruned, best accuracy {study.best_value:.3f} with {study.best_params}")


if __name__ == "__main__":
    main()
