"""Predicts, evaluates and trains on texts with the Trainer of Hugging Face, like a program that does not know coprep.

Predictions come first, so that they use the weights of the seed. Each text has a label of its own.
"""

from __future__ import annotations

import argparse
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import transformers
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers

TEXTS = 300
HELD_OUT = 70


def texts(count: int, seed: int) -> Dataset:
    draw = random.Random(seed)
    lines = [" ".join(f"w{draw.randrange(200)}" for _ in range(draw.randint(3, 60))) for _ in range(count)]
    return Dataset.from_dict({"text": lines, "label": list(range(count))})


def tokenizer() -> Any:
    words = {word: number for number, word in enumerate(["[PAD]", "[UNK]", *(f"w{n}" for n in range(200))])}
    made = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=made, pad_token="[PAD]", unk_token="[UNK]")


def accuracy(given: Any) -> dict[str, float]:
    return {"accuracy": float((np.argmax(given.predictions, axis=1) == given.label_ids).mean())}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--when", choices=("before", "batch"), default="before", help="when texts become tokens")
    args = parser.parse_args()
    transformers.set_seed(0)
    to_tokens = tokenizer()
    train, test = texts(TEXTS, 1), texts(HELD_OUT, 2)
    if args.when == "before":
        train, test = (some.map(lambda row: to_tokens(row["text"]), remove_columns=["text"]) for some in (train, test))
    else:

        def encode(rows: dict[str, Any]) -> dict[str, Any]:
            return {**to_tokens(rows["text"]), "label": rows["label"]}

        train.set_transform(encode)
        test.set_transform(encode)
    config = transformers.BertConfig(
        vocab_size=202,
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=64,
        num_labels=TEXTS,
    )
    trainer = transformers.Trainer(
        model=transformers.BertForSequenceClassification(config),
        args=transformers.TrainingArguments(
            output_dir=str(args.out),
            num_train_epochs=args.epochs,
            per_device_train_batch_size=16,
            per_device_eval_batch_size=16,
            dataloader_num_workers=args.workers,
            eval_strategy="epoch",
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            use_cpu=True,
            # If texts become tokens in each batch, the Trainer must not drop their column.
            remove_unused_columns=args.when == "before",
        ),
        train_dataset=train,
        eval_dataset=test,
        data_collator=transformers.DataCollatorWithPadding(to_tokens),
        compute_metrics=accuracy,
    )
    np.save(args.out / "predictions.npy", trainer.predict(test).predictions)
    metrics = trainer.evaluate()
    kept = {name: metrics[name] for name in ("eval_loss", "eval_accuracy")}
    result = trainer.train()
    (args.out / "result.json").write_text(json.dumps({**kept, "steps": result.global_step}))
    trainer.predict(test)


if __name__ == "__main__":
    main()
