// Unpacks the template of the embedded database in a separate thread, to free the memory afterwards.
import { workerData } from 'node:worker_threads'
import { unpackCluster } from './cluster.ts'
import type { WorkerInput } from './embedded.ts'

const { dir, template, durable, progress } = workerData as WorkerInput
try {
  unpackCluster(template, dir, { durable, onProgress: () => { Atomics.add(progress, 0, 1) } })
} catch (error) {
  // Errors of `tar` contain a stream, so the main thread would receive them without their code.
  const { message, code } = error as NodeJS.ErrnoException
  throw Object.assign(new Error(message), { code })
}
