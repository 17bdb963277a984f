import { databaseError, transaction, type Db } from '../db/database.ts'
import { claimCharge, claimRefund, type Charge, type Refund } from '../repositories/billing/invoices.ts'
import { listDue } from '../repositories/billing/subscriptions.ts'
import { ApiError } from '../rules/errors.ts'
import type { Log } from '../telemetry/log.ts'
import { createBackground, sideBySide, type Background } from '../vault/jobs/background.ts'
import type { Invoicing } from './invoicing.ts'
import type { Outcome, Provider } from './provider.ts'
import { reportCharge, reportRefund, type Doubt } from './settlement.ts'
import { closePeriods } from './subscriptions.ts'

export interface BillingWorker {
  db: Db
  invoicing: Invoicing & { provider: Provider }
  /** What an organization has whose subscription ended. */
  defaultPlan: string
  log: Log
  /** Milliseconds that the provider may take for an answer. */
  patience?: number | undefined
}

const PATIENCE = 10_000

const WARNINGS: Record<Doubt, string> = {
  contradiction: 'the provider contradicts the recorded outcome',
  twice: 'the money may have moved twice: recorded by the operator and reported by the provider'
}

/**
 * Closes the periods of subscriptions that are over and, in a background of its own, which a provider that does not
 * answer holds up alone, tells the provider what it was not told yet.
 */
export function createBillingWorker (worker: BillingWorker): Background {
  return sideBySide(createPeriodWorker(worker), createOrderWorker(worker))
}

function createPeriodWorker ({ db, invoicing, defaultPlan, log }: BillingWorker): Background {
  const attempt = attemptsIn(log)
  return createBackground((isStopped) => attempt('billing', {}, async () => {
    for (let after = '', due; !isStopped(); after = due.at(-1)!) {
      due = await listDue(db, after)
      if (due.length === 0) break
      for (const organization of due) {
        if (isStopped()) return
        await attempt('closing a billing period', { organization }, async () => {
          for (const { action } of await closePeriods(db, invoicing, defaultPlan, organization, isStopped)) {
            log.info({ organization, action }, 'billing period closed')
          }
        })
      }
    }
  }))
}

/**
 * The row of a charge or refund is the intent, committed with the change that made it, so what a crash left open is
 * found here: by the provider that it was asked of, and by no other. Each is claimed right before it is asked, so none
 * is that was settled meanwhile, and of several instances one asks.
 */
function createOrderWorker (
  { db: handle, invoicing: { provider }, log, patience = PATIENCE }: BillingWorker
): Background {
  const attempt = attemptsIn(log)
  const stopping = new AbortController()
  // Longer than a call: nobody asks for what another instance may be waiting for.
  const pause = 3 * patience

  // Ends also where the provider heeds no signal.
  async function ask (work: (signal: AbortSignal) => Promise<Outcome>): Promise<Outcome> {
    const signal = AbortSignal.any([AbortSignal.timeout(patience), stopping.signal])
    signal.throwIfAborted()
    return Promise.race([work(signal), new Promise<never>((_resolve, reject) => {
      signal.addEventListener('abort', () => { reject(signal.reason) }, { once: true })
    })])
  }

  async function submit (
    of: { organization: string, charge: string, invoice: string } | { organization: string, refund: string },
    work: (signal: AbortSignal) => Promise<Outcome>,
    report: (db: Db, outcome: Outcome) => Promise<Doubt | undefined>
  ) {
    await attempt('payment provider request', of, async () => {
      const outcome = await ask(work)
      const doubt = await transaction(handle, (db) => report(db, outcome), { organization_id: of.organization })
      if (doubt !== undefined) log.warn({ ...of, outcome: outcome.status }, WARNINGS[doubt])
    })
  }

  const submitCharge = (charge: Charge) => {
    const { organization_id: organization, id, invoice_id: invoice, amount, currency, payment_method_id } = charge
    return submit(
      { organization, charge: id, invoice },
      (signal) => provider.charge({ id, amount, currency, payment_method_id }, signal),
      (db, outcome) => reportCharge(db, charge, outcome)
    )
  }
  const submitRefund = (refund: Refund, charge: Charge) => {
    const { organization_id: organization, id, amount } = refund
    const { currency, provider_reference: reference } = charge
    const order = { id, amount, currency, charge: { id: charge.id, reference } }
    return submit(
      { organization, refund: id }, (signal) => provider.refund(order, signal),
      (db, outcome) => reportRefund(db, refund, outcome)
    )
  }

  const background = createBackground((isStopped) => attempt('billing', {}, async () => {
    for (let more = true; more && !isStopped();) {
      const charge = await claimCharge(handle, provider.name, pause)
      if (charge !== undefined) await submitCharge(charge)
      if (isStopped()) return
      const claimed = await claimRefund(handle, provider.name, pause)
      if (claimed !== undefined) await submitRefund(claimed.refund, claimed.charge)
      more = charge !== undefined || claimed !== undefined
    }
  }))
  return {
    ...background,
    async stop () {
      const stopped = background.stop()
      // What is under way is asked again by its id.
      stopping.abort()
      await stopped
    }
  }
}

// One that fails does not hold up the others; the next look tries it again.
const attemptsIn = (log: Log) => async (what: string, of: object, work: () => Promise<void>): Promise<void> => {
  try {
    await work()
  } catch (error) {
    // That has a warning of its own.
    if (error instanceof ApiError && error.code === 'invoicing_unavailable') return
    log.warn({ err: databaseError(error), ...of }, `${what} failed; will retry`)
  }
}
