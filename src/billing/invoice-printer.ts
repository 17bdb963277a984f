import { Worker } from 'node:worker_threads'
import { createGate, createGates, WorkOverloaded } from '../crypto/bounded.ts'
import type { PrintedInvoice } from './invoice-pdf.ts'
import type { Printed, PrintJob } from './invoice-thread.ts'

/** More invoices are asked for than can be drawn. */
export class PrintingOverloaded extends WorkOverloaded {
  override readonly name = 'PrintingOverloaded'
}

/** Draws invoices on a thread of its own. */
export interface Printer {
  /**
   * An invoice as PDF, for an organization; rejects with PrintingOverloaded when its turn does not come, or it takes
   * too long.
   */
  print (organizationId: string, invoice: PrintedInvoice, paymentDetails: string): Promise<Buffer>
  /** Ends the thread. */
  stop (): Promise<void>
}

// Milliseconds. A thread keeps the fonts that it has read, which an installation that prints no more has no use for.
const IDLE = 60_000
const PATIENCE = 10_000
const WAITING = 16
// Of one organization, behind the one that is drawn or waits its turn among the others'.
const WAITING_OF_ONE = 2
// MiB: of all fonts at once it takes about a hundred.
const HEAP = 384

/**
 * One invoice is drawn at a time, and so many wait at most, of each organization one: whoever asks for many takes their
 * turns from themselves alone. The thread starts when the first
 * is asked for.
 */
export function createPrinter ({ waiting = WAITING, patience = PATIENCE } = {}): Printer {
  const overloaded = () => new PrintingOverloaded('Too many invoices are being drawn')
  const gate = createGate(1, waiting, overloaded, patience)
  const gateOf = createGates(1, WAITING_OF_ONE, overloaded)
  let thread: Worker | undefined
  let idle: NodeJS.Timeout | undefined

  function start (): Worker {
    const path = import.meta.url.replace(/invoice-printer(\.\w+)$/, 'invoice-thread$1')
    const started = new Worker(new URL(path), { execArgv: [], resourceLimits: { maxOldGenerationSizeMb: HEAP } })
    // What it fails with goes to whoever waits for it; nobody may.
    started.on('error', () => {})
    started.unref()
    return started
  }

  async function stop () {
    clearTimeout(idle)
    const ended = thread
    thread = undefined
    await ended?.terminate()
  }

  async function draw (job: PrintJob): Promise<Buffer> {
    clearTimeout(idle)
    thread ??= start()
    try {
      const { buffer, byteOffset, length } = await answerOf(thread, job, patience)
      return Buffer.from(buffer, byteOffset, length)
    } catch (error) {
      // It may never end, or not be there any more: the next invoice is drawn by another one.
      await stop()
      throw error
    } finally {
      idle = setTimeout(() => { stop().catch(() => {}) }, IDLE).unref()
    }
  }

  return {
    print: (organizationId, invoice, paymentDetails) =>
      gateOf(organizationId)(() => gate(() => draw({ invoice, paymentDetails }))),
    stop
  }
}

async function answerOf (thread: Worker, job: PrintJob, patience: number): Promise<Uint8Array> {
  const ending = new AbortController()
  try {
    return await new Promise((resolve, reject) => {
      const { signal } = ending
      const timer = setTimeout(() => {
        reject(new PrintingOverloaded('An invoice takes too long to draw'))
      }, patience)
      const heard = (printed: Printed) => 'file' in printed ? resolve(printed.file) : reject(printed.error)
      const gone = () => { reject(new PrintingOverloaded('The thread that draws invoices has ended')) }
      thread.on('message', heard).on('error', reject).on('exit', gone)
      signal.addEventListener('abort', () => {
        clearTimeout(timer)
        thread.off('message', heard).off('error', reject).off('exit', gone)
      })
      thread.postMessage(job)
    })
  } finally {
    ending.abort()
  }
}
