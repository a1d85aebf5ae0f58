"""Predicted gradients in a loop with accelerate. Needs `pip install '.[accelerate]'`.

python examples/accelerate_loop.py
"""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import adagp
from adagp.data import load_images
from adagp.integrations.accelerate import AcceleratedBatches, Accelerator

EPOCHS = 12


def main() -> None:
    """Train on the embedded digits, two micro-batches per step."""
    torch.manual_seed(0)
    digits = load_images("digits")
    samples = TensorDataset(torch.from_numpy(digits.x_train).float() / 16, torch.from_numpy(digits.y_train))
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    loader = DataLoader(samples, batch_size=32, shuffle=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

    steps = EPOCHS * -(-len(loader) // 2)
    batches = AcceleratedBatches(accelerator, model, optimizer, steps=steps, method=adagp.Feedback(features=10))
    for _ in range(EPOCHS):
        for inputs, targets in loader:
            with batches.accumulate():  # in place of accelerator.accumulate(model)
                batches.backward(F.cross_entropy(model(inputs), targets))  # in place of accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
    with torch.no_grad():
        right = model(torch.from_numpy(digits.x_test).float() / 16).argmax(1) == torch.from_numpy(digits.y_test)
    print(f"test accuracy {right.float().mean():.4f}")


if __name__ == "__main__":
    main()
