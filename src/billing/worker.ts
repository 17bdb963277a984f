import { databaseError, type Db } from '../db/database.ts'
import { claimCharge, claimRefund, type Charge, type Refund } from '../repositories/billing/invoices.ts'
import { listDue } from '../repositories/billing/subscriptions.ts'
import { ApiError } from '../rules/api-error.ts'
import type { Log } from '../telemetry/log.ts'
import { createBackground, sideBySide, type Background } from '../jobs/background.ts'
import type { Invoicing } from './invoicing.ts'
import type { Outcome, Provider } from './provider.ts'
import { reportCharge, reportRefund, type Doubt } from './settlement.ts'
import { closePeriods } from './subscriptions.ts'

interface BillingWorker {
  db: Db
  invoicing: Invoicing & { provider: Provider }
  /** The plan of an organization after its subscription has ended. */
  defaultPlan: string
  log: Log
  /** Timeout of a provider call in milliseconds. */
  patience?: number | undefined
}

const PROVIDER_TIMEOUT_MS = 10_000

const WARNINGS: Record<Doubt, string> = {
  contradiction: 'the provider contradicts the recorded outcome',
  twice: 'the money may have moved twice: recorded by the operator and reported by the provider'
}

/**
 * Closes ended billing periods, and sends open charges and refunds to the provider. Two separate workers do this, so
 * that a slow provider does not delay the periods.
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
 * Sends charges and refunds to the provider. Their rows in the database are the queue, so the queue survives a crash.
 * Each row names the provider that gets the order. The worker claims a row right before the call, so that it skips
 * settled orders and only one instance sends an order.
 */
function createOrderWorker (
  { db: handle, invoicing: { provider }, log, patience = PROVIDER_TIMEOUT_MS }: BillingWorker
): Background {
  const attempt = attemptsIn(log)
  const stopping = new AbortController()
  // A claim lasts longer than the call, so that no other instance repeats a call that is still running.
  const claimMs = 3 * patience

  // Rejects at the timeout, even if the provider ignores the signal.
  async function callProvider (work: (signal: AbortSignal) => Promise<Outcome>): Promise<Outcome> {
    const signal = AbortSignal.any([AbortSignal.timeout(patience), stopping.signal])
    signal.throwIfAborted()
    return Promise.race([work(signal), new Promise<never>((_resolve, reject) => {
      signal.addEventListener('abort', () => { reject(signal.reason) }, { once: true })
    })])
  }

  async function submit (
    of: { organization: string, charge: string, invoice: string } | { organization: string, refund: string },
    work: (signal: AbortSignal) => Promise<Outcome>,
    report: (outcome: Outcome) => Promise<Doubt | undefined>
  ) {
    await attempt('payment provider request', of, async () => {
      const outcome = await callProvider(work)
      const doubt = await report(outcome)
      if (doubt !== undefined) log.warn({ ...of, outcome: outcome.status }, WARNINGS[doubt])
    })
  }

  const submitCharge = (charge: Charge) => {
    const { organization_id: organization, id, invoice_id: invoice, amount, currency, payment_method_id } = charge
    return submit(
      { organization, charge: id, invoice },
      (signal) => provider.charge({ id, amount, currency, payment_method_id }, signal),
      (outcome) => reportCharge(handle, charge, outcome)
    )
  }
  const submitRefund = (refund: Refund, charge: Charge) => {
    const { organization_id: organization, id, amount } = refund
    const { currency, provider_reference: reference } = charge
    const order = { id, amount, currency, charge: { id: charge.id, reference } }
    return submit(
      { organization, refund: id }, (signal) => provider.refund(order, signal),
      (outcome) => reportRefund(handle, refund, outcome)
    )
  }

  const background = createBackground((isStopped) => attempt('billing', {}, async () => {
    for (let more = true; more && !isStopped();) {
      const charge = await claimCharge(handle, provider.name, claimMs)
      if (charge !== undefined) await submitCharge(charge)
      if (isStopped()) return
      const claimed = await claimRefund(handle, provider.name, claimMs)
      if (claimed !== undefined) await submitRefund(claimed.refund, claimed.charge)
      more = charge !== undefined || claimed !== undefined
    }
  }))
  return {
    ...background,
    async stop () {
      const stopped = background.stop()
      // After the next start, the worker repeats aborted calls with the same id.
      stopping.abort()
      await stopped
    }
  }
}

// Returns a function that runs `work` and logs an error. The next run of the worker retries.
const attemptsIn = (log: Log) => async (job: string, of: object, work: () => Promise<void>): Promise<void> => {
  try {
    await work()
  } catch (error) {
    // `createSellerWarning` has already logged this error.
    if (error instanceof ApiError && error.code === 'invoicing_unavailable') return
    log.warn({ err: databaseError(error), ...of }, `${job} failed; will retry`)
  }
}
