// What every process of a run of the tests begins with, by NODE_OPTIONS: the servers and commands that they start, too.
import { setFlagsFromString } from 'node:v8'
import './statements.ts'

// A process of a test lives for seconds. To optimize the embedded PostgreSQL meanwhile costs each a second of a core, and
// comes too late to be worth it: it begins at ten times as much work.
setFlagsFromString('--wasm-tiering-budget=18000000')
