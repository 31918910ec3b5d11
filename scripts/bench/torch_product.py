"""Measures PyTorch's matrix products y (M, N) = x (M, K) W (N, K)^T, like `tealight bench product`.

With --precision bf16, x, W and y are stored in bf16. (Tealight's are f32; it rounds x and W within the product.)
"""

import argparse
import json
import time

import torch

DEFAULT = "4096x1024x256,4096x256x1024,614x8192x256,2048x2048x2048,1000x64x32,768x512x128"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", default=DEFAULT)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--precision", choices=["f32", "bf16"], default="f32")
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    dtype = {"f32": torch.float32, "bf16": torch.bfloat16}[args.precision]
    products = []
    with torch.no_grad():
        for shape in args.shapes.split(","):
            m, n, k = (int(size) for size in shape.split("x"))
            x, weight = torch.rand(m, k).to(dtype), torch.rand(n, k).to(dtype)
            torch.nn.functional.linear(x, weight)
            times, started = [], time.perf_counter()
            while len(times) < 5 or time.perf_counter() - started < args.seconds:
                since = time.perf_counter()
                torch.nn.functional.linear(x, weight)
                times.append(time.perf_counter() - since)
            times.sort()
            rate = 2e-9 * m * n * k / times[len(times) // 2]
            products.append({"shape": shape, "gflops": rate, "best_gflops": 2e-9 * m * n * k / times[0]})
    print(json.dumps({"version": torch.__version__, "threads": args.threads, "precision": args.precision,
                      "products": products}))


if __name__ == "__main__":
    main()
