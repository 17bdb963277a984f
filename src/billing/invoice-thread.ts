import { parentPort } from 'node:worker_threads'
import { renderInvoice, type PrintedInvoice } from './invoice-pdf.ts'

// A thread that draws invoices: fonts of ten thousands of glyphs take up to a second, which no request is to wait for.

/** What the thread is asked for, one at a time. */
export interface PrintJob { invoice: PrintedInvoice, paymentDetails: string }

/** What it answers. */
export type Printed = { file: Uint8Array } | { error: Error }

parentPort!.on('message', ({ invoice, paymentDetails }: PrintJob) => {
  renderInvoice(invoice, paymentDetails).then(
    (file) => { parentPort!.postMessage({ file } satisfies Printed) },
    (error: Error) => { parentPort!.postMessage({ error } satisfies Printed) }
  )
})
