// What @grpc/grpc-js makes of the server. Usage: node client.js HOST:PORT; prints one JSON object, a member per scenario.
"use strict";

const path = require("node:path");
const grpc = require("@grpc/grpc-js");
const loader = require("@grpc/proto-loader");

const SOURCE = path.join(__dirname, "..", "..", "..", "src", "bireme");
const OPTIONS = { keepCase: true, longs: Number, defaults: true, includeDirs: ["wire/grpc", "config"].map((name) => path.join(SOURCE, name)) };
const inference = grpc.loadPackageDefinition(loader.loadSync("grpc_service.proto", OPTIONS)).inference;
const health = grpc.loadPackageDefinition(loader.loadSync("health.proto", OPTIONS)).grpc.health.v1;

const [address] = process.argv.slice(2);
const credentials = grpc.credentials.createInsecure();
const UNLIMITED = { "grpc.max_receive_message_length": -1, "grpc.max_send_message_length": -1 };
const client = new inference.GRPCInferenceService(address, credentials, UNLIMITED);

// Make a unary call; resolve to its response, or to { code, details } when it fails.
function ask(method, request, { metadata = new grpc.Metadata(), on = client, ...options } = {}) {
  return new Promise((resolve) => {
    on[method](request, metadata, options, (error, response) =>
      resolve(error ? { code: error.code, details: error.details } : response));
  });
}

function bytesOf(values) {
  return Buffer.from(Float32Array.from(values).buffer);
}

function floatsOf(buffer) {
  return [...new Float32Array(buffer.buffer.slice(buffer.byteOffset, buffer.byteOffset + buffer.length))];
}

function plusOne(values, id = "") {
  return {
    model_name: "plus_one",
    id,
    inputs: [{ name: "X", datatype: "FP32", shape: [values.length] }],
    raw_input_contents: [bytesOf(values)],
  };
}

async function inferred(values, options) {
  const response = await ask("ModelInfer", plusOne(values), options);
  return response.code ? response : floatsOf(response.raw_output_contents[0]);
}

// Open a stream, send requests, half-close; resolve to the answers' ids (or error texts) and the status.
function stream(requests, { cancelAfter = Infinity } = {}) {
  return new Promise((resolve) => {
    const answers = [];
    const call = client.ModelStreamInfer();
    let status = null;
    call.on("data", (message) => {
      answers.push(message.error_message || message.infer_response.id);
      if (answers.length === cancelAfter) call.cancel();
    });
    call.on("error", () => {});
    call.on("status", (found) => { status = found.code; resolve({ answers, status }); });
    for (const request of requests) call.write(request);
    if (cancelAfter === Infinity) call.end();
  });
}

const scenarios = {
  live: () => ask("ServerLive", {}),
  ready: () => ask("ModelReady", { name: "plus_one" }),
  metadata: () => ask("ModelMetadata", { name: "plus_one" }),
  health: () => ask("check", {}, { on: new health.Health(address, credentials) }),
  infer: () => inferred([1, 2, 3]),
  typed: async () => {
    const request = { ...plusOne([]), raw_input_contents: [] };
    request.inputs = [{ name: "X", datatype: "FP32", shape: [2], contents: { fp32_contents: [1.5, 2.5] } }];
    return floatsOf((await ask("ModelInfer", request)).raw_output_contents[0]);
  },
  not_found: () => ask("ModelInfer", { ...plusOne([1]), model_name: "nichts ✓" }),
  invalid: () => ask("ModelInfer", { ...plusOne([1]), raw_input_contents: [Buffer.alloc(3)] }),
  unimplemented: () => new Promise((resolve) => client.makeUnaryRequest(
    "/inference.GRPCInferenceService/Nothing", (data) => data, (data) => data, Buffer.alloc(0), (error) => resolve(error.code))),
  metadata_sent: () => {
    const metadata = new grpc.Metadata();
    metadata.set("x-text", "value");
    metadata.set("x-data-bin", Buffer.from([0, 255, 10]));
    return inferred([5], { metadata });
  },
  large: async () => {
    const values = new Float32Array(4 << 20).map((_, index) => index % 1000);
    const found = await inferred(values);
    return found.length === values.length && found.every((value, index) => value === values[index] + 1);
  },
  too_large_to_receive: async () => {
    const small = new inference.GRPCInferenceService(address, credentials, { "grpc.max_receive_message_length": 1000 });
    const first = await inferred(new Float32Array(1000), { on: small });
    return [first.code, (await inferred([1], { on: small }))[0]];
  },
  many: async () => {
    const found = await Promise.all(Array.from({ length: 200 }, (_, index) => inferred([index])));
    return found.every((values, index) => values[0] === index + 1);
  },
  deadline: async () => (await ask("ModelInfer", { ...plusOne([1]), model_name: "slow" }, { deadline: Date.now() + 100 })).code,
  cancelled: () => new Promise((resolve) => {
    const call = client.ModelInfer({ ...plusOne([1]), model_name: "slow" }, (error) => resolve(error.code));
    setTimeout(() => call.cancel(), 50);
  }),
  stream: () => stream(Array.from({ length: 20 }, (_, index) => plusOne([index], String(index)))),
  stream_errors: () => stream([{ ...plusOne([1], "a"), model_name: "nothing" }, plusOne([1], "b")]),
  stream_cancelled: () => stream([plusOne([1], "a"), { ...plusOne([1], "b"), model_name: "slow" }], { cancelAfter: 1 }),
};
for (const [name, algorithm] of Object.entries({ deflate: 1, gzip: 2 })) {
  scenarios[name] = () => inferred(new Float32Array(2000), { on: new inference.GRPCInferenceService(address, credentials,
    { "grpc.default_compression_algorithm": algorithm }) }).then((found) => found.every((value) => value === 1));
}

async function main() {
  const results = {};
  for (const [name, scenario] of Object.entries(scenarios)) results[name] = await scenario();
  process.stdout.write(JSON.stringify(results));
  process.exit(0);
}

main();
