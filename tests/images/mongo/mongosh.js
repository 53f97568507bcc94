#!/usr/bin/env node
// Starts mongosh from one file and the code that was compiled from it when the image was built (with MONGOSH_COMPILE):
// compiling it anew takes half a second of every run.
'use strict';
const fs = require('fs');
const Module = require('module');
const path = require('path');
const vm = require('vm');

const file = path.join(__dirname, 'bundle.js');
const compiled = `${file}.compiled`;
const compile = process.env.MONGOSH_COMPILE;

let cachedData;
try {
  cachedData = compile ? undefined : fs.readFileSync(compiled);
} catch {
  // Then it is compiled as any file would be.
}
// It is plain ASCII, and this way it is not looked through for anything else.
const script = new vm.Script(fs.readFileSync(file, 'latin1'), { filename: file, cachedData });
if (compile) process.on('exit', () => fs.writeFileSync(compiled, script.createCachedData()));
const bundle = new Module(file);
bundle.filename = file;
script.runInThisContext().call(bundle.exports, bundle.exports, Module.createRequire(file), bundle, file, __dirname);
