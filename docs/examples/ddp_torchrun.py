"""Train on several ranks with DistributedDataParallel, and resume an interrupted run.

    torchrun --standalone --nproc-per-node 2 ddp_torchrun.py data/train --checkpoint run.pt

The loader finds the ranks by itself: no DistributedSampler, no set_epoch. Each epoch gives every image to one of the
ranks, and all ranks prepare together. The checkpoint holds the loader's state, so a run that was stopped in the middle
of an epoch resumes with the images that it has not seen yet. The number of ranks may differ.
"""

import argparse
import os
from pathlib import Path

import torch
import torch.distributed as dist
from coprep import DataLoader
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torchvision import transforms
from torchvision.datasets import ImageFolder
from torchvision.models.resnet import BasicBlock, ResNet


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("data", help="folder with one subfolder of images per class")
    parser.add_argument("--epochs", type=int, default=90)
    parser.add_argument("--steps", type=int, help="stop after so many")
    parser.add_argument("--batch-size", type=int, default=64, help="of each rank")
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--size", type=int, default=224, help="side of the images in pixels")
    parser.add_argument("--blocks", type=int, nargs=4, default=[2, 2, 2, 2], help="2 2 2 2 is ResNet-18")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--threads", type=int, default=1, help="of PyTorch on the CPU, per rank")
    parser.add_argument("--checkpoint", type=Path, help="file to go on from, if it is there, and to save to")
    parser.add_argument("--save-every", type=int, default=100, help="steps")
    parser.add_argument("--check", action="store_true", help="count the images of each epoch")
    return parser.parse_args()


class Photos(ImageFolder):
    """An image folder whose samples also carry the image's id."""

    def __getitem__(self, i: int) -> tuple[torch.Tensor, int, int]:
        return (*super().__getitem__(i), i)


def count(epoch: int, ids: list[int]) -> None:
    """Print how many images all ranks received together."""
    of_rank: list = [None] * dist.get_world_size()
    dist.all_gather_object(of_rank, ids)
    given = sum(of_rank, [])
    if dist.get_rank() == 0:
        print(f"epoch {epoch}: {len(given)} images, {len(set(given))} different", flush=True)


def save(path: Path, state: dict) -> None:
    """Write the checkpoint through a temporary file, so that a crash never leaves half of one."""
    part = path.with_suffix(".part")
    torch.save(state, part)
    part.replace(path)


def main() -> None:
    args = arguments()
    torch.set_num_threads(args.threads)
    local = int(os.environ["LOCAL_RANK"])
    # Gloo replaces NCCL on a machine with fewer GPUs than ranks.
    cuda = torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"])
    device = torch.device(f"cuda:{local}" if cuda else "cpu")
    dist.init_process_group("nccl" if cuda else "gloo")

    operators = [transforms.RandomResizedCrop(args.size), transforms.RandomHorizontalFlip(), transforms.ToTensor()]
    dataset = Photos(args.data, transforms.Compose(operators))
    loader = DataLoader(dataset, args.batch_size, shuffle=True, num_workers=args.workers)
    model = DistributedDataParallel(ResNet(BasicBlock, args.blocks, num_classes=len(dataset.classes)).to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9, weight_decay=1e-4)

    parts = {"model": model, "optimizer": optimizer, "loader": loader}
    if args.checkpoint and args.checkpoint.exists():
        state = torch.load(args.checkpoint, map_location=device)
        for name, part in parts.items():
            part.load_state_dict(state[name])

    step = 0
    # After a resume this is the checkpoint's epoch, and the first loop gives the rest of it.
    for epoch in range(loader.epoch, args.epochs):
        ids = []
        for images, labels, index in loader:
            loss = nn.functional.cross_entropy(model(images.to(device)), labels.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            ids += index.tolist()
            step += 1
            if args.checkpoint and (step % args.save_every == 0 or step == args.steps):
                # Every rank calls state_dict at the same step, since a state covers all ranks. Rank 0 alone writes it.
                state = {name: part.state_dict() for name, part in parts.items()}
                if dist.get_rank() == 0:
                    save(args.checkpoint, state)
            if step == args.steps:
                break
        if args.check:
            count(epoch, ids)
        if step == args.steps:
            break
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
