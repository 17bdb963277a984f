// Unpacks the template of the embedded database in a separate thread, whose memory is freed when it ends.
import { workerData } from 'node:worker_threads'
import { unpackCluster } from './cluster.ts'
import type { WorkerInput } from './embedded.ts'

const { dir, template, durable, progress } = workerData as WorkerInput
try {
  unpackCluster(template, dir, { durable, onProgress: () => { Atomics.add(progress, 0, 1) } })
} catch (error) {
  // An error of `tar` holds a stream. Such an error reaches the other thread without its code.
  const { message, code } = error as NodeJS.ErrnoException
  throw Object.assign(new Error(message), { code })
}
