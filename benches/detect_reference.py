#!/usr/bin/env python3
"""What `examples/detect` does, with torchvision: photos in, annotated copies and COCO results out.

    python detect_reference.py --weights W.safetensors --output FOLDER --json FILE [--channels-last] [--meta] PHOTO...

It is what the speed of `detect` is compared with in docs/cpu-performance.md: the same model, threshold, files and
formats. With --meta, first weights that are replaced anyway are not drawn, which few scripts care to do. Needs torch, torchvision, pycocotools, safetensors, pillow and numpy.
"""
import argparse
import json
import pathlib
import re
import time

import numpy as np
import torch
import torchvision.models.detection as detection
from PIL import Image
from pycocotools import mask as coco_mask
from safetensors.torch import load_file
from torchvision.ops import FrozenBatchNorm2d
from torchvision.utils import draw_bounding_boxes, draw_segmentation_masks


def freeze_batch_norm(module):
    """The published weights go with frozen norms whose epsilon is zero."""
    for name, child in module.named_children():
        if isinstance(child, torch.nn.BatchNorm2d):
            setattr(module, name, FrozenBatchNorm2d(child.num_features, eps=0.0))
        else:
            freeze_batch_norm(child)


def load(path, channels_last, on_meta):
    state = {k: v.float() for k, v in load_file(path).items() if not k.endswith("num_batches_tracked")}
    with torch.device("meta" if on_meta else "cpu"):
        model = detection.maskrcnn_resnet50_fpn(weights=None, weights_backbone=None)
        freeze_batch_norm(model)
    model.load_state_dict(state, assign=on_meta)
    model.eval()
    return model.to(memory_format=torch.channels_last) if channels_last else model


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weights", required=True)
    parser.add_argument("--output", required=True, type=pathlib.Path)
    parser.add_argument("--json", required=True, type=pathlib.Path)
    parser.add_argument("--channels-last", action="store_true")
    parser.add_argument("--meta", action="store_true")
    parser.add_argument("--score-threshold", type=float, default=0.5)
    parser.add_argument("photos", nargs="+", type=pathlib.Path)
    args = parser.parse_args()

    model = load(args.weights, args.channels_last, args.meta)
    args.output.mkdir(parents=True, exist_ok=True)
    results = []
    start = time.perf_counter()
    with torch.inference_mode():
        for path in args.photos:
            pixels = torch.from_numpy(np.array(Image.open(path).convert("RGB"))).permute(2, 0, 1)
            found = model([pixels.float().div(255)])[0]
            keep = found["scores"] > args.score_threshold
            found = {name: value[keep] for name, value in found.items()}
            masks = found["masks"][:, 0] > 0.5
            if len(masks):
                labels = [f"{l} {s:.2f}" for l, s in zip(found["labels"].tolist(), found["scores"].tolist())]
                pixels = draw_segmentation_masks(pixels, masks, alpha=0.5)
                pixels = draw_bounding_boxes(pixels, found["boxes"], labels, width=2)
            Image.fromarray(pixels.permute(1, 2, 0).numpy()).save(args.output / f"{path.stem}.png")
            for box, score, label, mask in zip(found["boxes"].tolist(), found["scores"].tolist(),
                                               found["labels"].tolist(), masks.numpy()):
                rle = coco_mask.encode(np.asfortranarray(mask))
                results.append({
                    "image_id": int(re.sub(r"\D", "", path.stem) or 0),
                    "category_id": label,
                    "bbox": [box[0], box[1], box[2] - box[0], box[3] - box[1]],
                    "score": score,
                    "segmentation": {"size": rle["size"], "counts": rle["counts"].decode()},
                })
    seconds = time.perf_counter() - start
    args.json.write_text(json.dumps(results))
    print(f"{len(args.photos)} photos in {seconds:.2f} s, {len(args.photos) / seconds:.3f} per second, without loading")


if __name__ == "__main__":
    main()
