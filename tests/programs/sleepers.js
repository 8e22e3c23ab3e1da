// SPDX-License-Identifier: Apache-2.0
// Ground truth in JavaScript: the functions of Node's main thread wait at a known rate, and note each return.
//
//	node sleepers.js [RATE_HZ]      until its input ends; then it prints what it noted
//
// Chain: again -> outer -> inner -> Atomics.wait.
"use strict";

const cell = new Int32Array(new SharedArrayBuffer(4));
const period = 1000 / (Number(process.argv[2]) || 37);
const noted = [];
let ended = false;

function inner(milliseconds) {
  Atomics.wait(cell, 0, 0, milliseconds);
  noted.push(process.hrtime.bigint());
}

function outer(milliseconds) {
  inner(milliseconds);
  return 1;
}

function again() {
  outer(period);
  if (ended) process.stdout.write(`{"inner": [${noted.join(", ")}]}\n`);
  else setImmediate(again);
}

process.stdin.on("end", () => {
  ended = true;
});
process.stdin.resume();
process.stdout.write(`{"pid": ${process.pid}}\n`);
again();
