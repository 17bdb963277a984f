// Unpacks the template of the embedded database in a thread of its own: what that took in memory goes with the thread.
import { workerData } from 'node:worker_threads'
import { unpackCluster } from './cluster.ts'
import type { WorkerInput } from './embedded.ts'

const { dir, template, durable, progress } = workerData as WorkerInput
await unpackCluster(template, dir, { durable, onProgress: () => { Atomics.add(progress, 0, 1) } })
