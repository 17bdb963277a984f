import type { ChargeOrder, Outcome, Provider, RefundOrder } from '../../src/billing/provider.ts'
import type { Answer, Caller, TestApp } from './app.ts'
import { until } from './until.ts'

export const path = (caller: Caller, rest: string) => `/organizations/${caller.organization}/${rest}`

/** Sends a request below `billing/` of the caller's organization. */
export const bill = (
  caller: Caller, method: string, rest: string, body?: object, headers?: Record<string, string>
): Promise<Answer> => caller.call(method, path(caller, `billing/${rest}`), body, headers)

export const subscribe = (caller: Caller, body: object = { plan: 'pro' }, headers?: Record<string, string>) =>
  bill(caller, 'POST', 'subscription', body, headers)

export const charge = (caller: Caller, amount: unknown, headers?: Record<string, string>) =>
  bill(caller, 'POST', 'charges', { amount, currency: 'EUR', description: 'Onboarding' }, headers)

export const invoicesOf = async (caller: Caller) => (await bill(caller, 'GET', 'invoices')).body.data as {
  id: string
  attributes: Record<string, any>
}[]

/** Returns a function that reads the rows of an organization in a table. */
export const rowsOf = (service: TestApp) => async (table: string, { organization }: Caller) =>
  service.sql(`SELECT * FROM ${table} WHERE organization_id = '${organization}'`)

/** The actions of an organization's audit events, in order. */
export const eventsOf = async (service: TestApp, { organization }: Caller) =>
  (await service.sql(`SELECT action FROM audit_events WHERE organization_id = '${organization}' ORDER BY seq`))
    .map(({ action }) => action as string)

/** Runs the billing worker until `isDone`. */
export async function background (
  app: { billing: { wake (): void } }, isDone: () => boolean | Promise<boolean>
): Promise<void> {
  app.billing.wake()
  await until(isDone, { every: 25, again: () => app.billing.wake() })
}

/** A fake payment provider, which can be made to fail, decline, or not respond (`state.mode`). */
export function processor (name = 'processor') {
  const ledger = new Map<string, Outcome>()
  const asked: string[] = []
  const state = { mode: 'up' as 'up' | 'down' | 'silent' | 'declines' }
  const held: (() => void)[] = []
  const move = async (kind: string, { id }: ChargeOrder | RefundOrder): Promise<Outcome> => {
    asked.push(id)
    const { mode } = state
    if (mode === 'down') throw new Error('connect ECONNREFUSED')
    const known = ledger.get(id)
    if (known !== undefined) return known
    const outcome = { status: mode === 'declines' ? 'failed' : 'succeeded', reference: `${kind}_${id}` } as const
    ledger.set(id, outcome)
    // Executes the payment, but holds the response back until `speak` is called.
    if (mode === 'silent') await new Promise<void>((resolve) => { held.push(resolve) })
    return outcome
  }
  const provider: Provider = {
    name, charge: (order) => move('ch', order), refund: (order) => move('re', order)
  }
  return { provider, ledger, asked, state, speak: () => { for (const resolve of held.splice(0)) resolve() } }
}
