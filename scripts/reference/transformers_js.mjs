// Runs exported ONNX folders with transformers.js and compares with what transformers computes: filled masks, classes of
// texts and greedy texts. No network: folders are read from the disk.
//
//     for name in bert roberta bert_cls; do
//         tealight export crates/tealight-train/tests/golden/models/$name --to /tmp/exported/$name --format onnx
//     done
//     tealight export crates/tealight-train/tests/golden/models/gpt2 --to /tmp/exported/gpt2 --format onnx --cache
//     npm install @huggingface/transformers          # ONNXRUNTIME_NODE_INSTALL=skip: without its download of CUDA
//     node scripts/reference/transformers_js.mjs crates/tealight-train/tests/golden/models /tmp/exported
//
// @huggingface/transformers 4.3.1 (onnxruntime-node 1.30.0) was used. node finds it from the working directory.

import { existsSync, readFileSync, readdirSync } from "node:fs";
import { createRequire } from "node:module";
import { resolve } from "node:path";
import { pathToFileURL } from "node:url";

const TOLERANCE = 1e-4;
const [records, exported] = process.argv.slice(2);
const found = createRequire(resolve("package.json")).resolve("@huggingface/transformers");
const { AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer, Tensor, env, pipeline } =
  await import(pathToFileURL(found));
env.allowRemoteModels = false;
env.localModelPath = resolve(exported);
const options = { dtype: "fp32", device: "cpu" };

/// The largest difference of scores by name; infinite if a name is missing.
function difference(actual, expected) {
  const off = ([name, score]) => (actual.has(name) ? Math.abs(actual.get(name) - score) : Infinity);
  return Math.max(...[...expected].map(off));
}

async function fillMask(name, { results, top_k }) {
  const fill = await pipeline("fill-mask", name, options);
  let worst = 0;
  for (const { sentence, output } of results) {
    // A sentence with several masks has a list for each; transformers.js fills the first.
    const first = Array.isArray(output[0]) ? output[0] : output;
    if (first !== output) continue;
    const actual = new Map((await fill(sentence, { top_k })).map((one) => [one.token, one.score]));
    worst = Math.max(worst, difference(actual, new Map(first.map((one) => [one.token, one.score]))));
  }
  return worst;
}

/// As the pipeline, which takes no pairs, and no problem_type but one.
async function classify(name, { results }) {
  const tokenizer = await AutoTokenizer.from_pretrained(name);
  const model = await AutoModelForSequenceClassification.from_pretrained(name, options);
  const { id2label, problem_type: problem, type_vocab_size: types } = model.config;
  // transformers.js makes token types by itself only for classes of tokenizers that it knows by name.
  const return_token_type_ids = types > 1;
  const one = problem === "regression" || Object.keys(id2label).length === 1;
  let worst = 0;
  for (const { input, output } of results) {
    const [text, text_pair] = Array.isArray(input) ? input : [input, null];
    const { logits } = await model(tokenizer(text, { text_pair, return_token_type_ids }));
    const numbers = [...logits.data];
    const sigmoid = (x) => 1 / (1 + Math.exp(-x));
    const sum = numbers.map(Math.exp).reduce((a, b) => a + b);
    const score = (x) => (problem === "regression" ? x : problem === "multi_label_classification" || one ? sigmoid(x) : Math.exp(x) / sum);
    const actual = new Map(numbers.map((x, i) => [id2label[i], score(x)]));
    worst = Math.max(worst, difference(actual, new Map(output.map((one) => [one.label, one.score]))));
  }
  return worst;
}

async function classifyByPipeline(name, { results }) {
  const pipe = await pipeline("text-classification", name, options);
  let worst = 0;
  for (const { input, output } of results.filter(({ input }) => !Array.isArray(input))) {
    const actual = new Map((await pipe(input, { top_k: output.length })).map((one) => [one.label, one.score]));
    worst = Math.max(worst, difference(actual, new Map(output.map((one) => [one.label, one.score]))));
  }
  return worst;
}

/// Greedy continuations: the first token that differs counts as an infinite difference.
async function greedy(name, texts) {
  const model = await AutoModelForCausalLM.from_pretrained(name, options);
  for (const { prompt_ids, output_ids } of texts) {
    const n = prompt_ids.length;
    const tensor = (values) => new Tensor("int64", BigInt64Array.from(values.map(BigInt)), [1, n]);
    const inputs = { input_ids: tensor(prompt_ids), attention_mask: tensor(prompt_ids.map(() => 1)) };
    const max_new_tokens = output_ids.length - n;
    // No id ends the text, as in the record.
    const made = await model.generate({ ...inputs, max_new_tokens, do_sample: false, eos_token_id: -1 });
    if ([...made.data].map(Number).join() !== output_ids.join()) return Infinity;
  }
  return 0;
}

let [nChecks, nBad] = [0, 0];
for (const name of readdirSync(exported).sort()) {
  const record = resolve(records, name, "expected.json");
  if (!existsSync(record) || !existsSync(resolve(exported, name, "tokenizer.json"))) continue;
  const expected = JSON.parse(readFileSync(record, "utf8"));
  const config = JSON.parse(readFileSync(resolve(exported, name, "config.json"), "utf8"));
  const plain = { masks: expected.fill_mask?.plain, classes: expected.text_classification?.plain };
  const checks = {
    "fill-mask": plain.masks && (() => fillMask(name, plain.masks)),
    classes: plain.classes && (() => classify(name, plain.classes)),
    "text-classification":
      plain.classes && config.problem_type !== "regression" && (() => classifyByPipeline(name, plain.classes)),
    greedy: expected.greedy && (() => greedy(name, expected.greedy)),
  };
  for (const [what, check] of Object.entries(checks).filter(([, check]) => check)) {
    let said;
    try {
      const worst = await check();
      said = [worst <= TOLERANCE, worst.toExponential(1)];
    } catch (error) {
      const text = `${error.message ?? error}`.split("\n")[0];
      if (text.startsWith("Unsupported model type")) {
        console.log(`none ${name} ${what}: ${text}`);
        continue;
      }
      said = [false, text];
    }
    nChecks += 1;
    nBad += !said[0];
    console.log(`${said[0] ? "good" : "bad "} ${name} ${what}: ${said[1]}`);
  }
}
console.log(`${nChecks} checks, ${nBad} bad`);
process.exit(nBad > 0 || nChecks === 0 ? 1 : 0);
