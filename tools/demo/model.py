"""A small classifier, trained for real: two layers on a 32x32 view of each image, in numpy."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]

SIDE = 32
"""Side of the model's view of an image, in pixels."""
HIDDEN = 64
"""Neurons of the hidden layer."""
MOMENTUM = 0.9


class Model:
    """A multi-layer perceptron with one hidden layer, softmax loss, and SGD with momentum."""

    def __init__(self, classes: int, learning_rate: float, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.learning_rate = learning_rate
        self.weights = [he(rng, 3 * SIDE * SIDE, HIDDEN), he(rng, HIDDEN, classes)]
        self.biases = [np.zeros(HIDDEN, np.float32), np.zeros(classes, np.float32)]
        self.speeds = [np.zeros_like(parameter) for parameter in self.parameters()]

    def parameters(self) -> list[Floats]:
        return self.weights + self.biases

    def step(self, images: NDArray[np.uint8], labels: NDArray[np.integer]) -> tuple[float, float]:
        """Trains on a batch (uint8 NCHW, 224x224). Returns its mean loss and its accuracy before the step."""
        inputs = view(images)
        hidden = np.maximum(inputs @ self.weights[0] + self.biases[0], 0)
        probabilities = softmax(hidden @ self.weights[1] + self.biases[1])
        rows = np.arange(len(labels))
        # A probability may be rounded to 0, which has no logarithm.
        loss = float(-np.log(probabilities[rows, labels] + 1e-9).mean())
        accuracy = float((probabilities.argmax(axis=1) == labels).mean())
        # The gradient of the softmax loss with respect to the scores: probabilities less the one-hot labels.
        error = probabilities
        error[rows, labels] -= 1
        error /= len(labels)
        back = (error @ self.weights[1].T) * (hidden > 0)
        self._descend([inputs.T @ back, hidden.T @ error, back.sum(axis=0), error.sum(axis=0)])
        return loss, accuracy

    def _descend(self, gradients: list[Floats]) -> None:
        for parameter, speed, gradient in zip(self.parameters(), self.speeds, gradients, strict=True):
            speed *= MOMENTUM
            speed -= self.learning_rate * gradient
            parameter += speed


def view(images: NDArray[np.uint8]) -> Floats:
    """Takes every seventh pixel, as numbers from -1 to 1, flattened."""
    # The middle one of every seven is taken, so that 224 pixels become 32.
    pixels = images[:, :, 3::7, 3::7].reshape(len(images), -1)
    numbers: Floats = pixels.astype(np.float32) / np.float32(127.5) - np.float32(1)
    return numbers


def softmax(scores: Floats) -> Floats:
    # The largest score is taken away, so that no power overflows.
    powers: Floats = np.exp(scores - scores.max(axis=1, keepdims=True))
    powers /= powers.sum(axis=1, keepdims=True)
    return powers


def he(rng: np.random.Generator, inputs: int, outputs: int) -> Floats:
    """Draws the weights of a layer, scaled as by He et al. for rectified units."""
    weights = rng.standard_normal((inputs, outputs), dtype=np.float32)
    return weights * np.float32(np.sqrt(2 / inputs))
