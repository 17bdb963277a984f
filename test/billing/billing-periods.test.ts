// runs: one database
import { subscribe as listen, unsubscribe } from 'node:diagnostics_channel'
import { sql } from 'drizzle-orm'
import t, { type Test } from 'tap'
import { buildApp } from '../../src/app.ts'
import { setPrice } from '../../src/commands/billing/billing.ts'
import { connect, type Database } from '../../src/db/database.ts'
import type { Provider } from '../../src/billing/provider.ts'
import { openRows } from '../../src/jobs/violations.ts'
import { freshDatabase, makeOrganization, makeToken, startIsolatedApp, type Caller } from '../helpers/app.ts'
import { background, bill, eventsOf, invoicesOf, processor, rowsOf, subscribe } from '../helpers/billing.ts'
import { QUICK } from '../helpers/costs.ts'
import { beside } from '../helpers/statements.ts'
import { openWay } from '../helpers/way.ts'

// This file has its own database, because the billing worker works on all organizations of a database.
const service = await startIsolatedApp(t)
await service.app.billing.stop()
const rows = rowsOf(service)
const planOf = async (caller: Caller) => (await caller.call('GET', '/organization')).body.data.attributes.plan_name
/** Moves the start of a subscription into the past. Each of these months is a period that the worker has not closed. */
const begunBefore = (months: number, ...callers: Caller[]) => service.sql(`UPDATE subscriptions SET
  anchor = now() - interval '${months} months', period_start = now() - interval '${months} months',
  period_end = now() - interval '${months} months' + interval '1 month'
  WHERE organization_id IN (${callers.map(({ organization }) => `'${organization}'`).join()})`)
const numbersOf = async (caller: Caller) =>
  (await rows('invoices', caller)).map(({ number }) => Number(number)).sort((a, b) => a - b)

/** Another instance of the service on the same database. */
async function instance (t: Test, provider: Provider = processor().provider, database: Database = service.database) {
  const { keyring, config } = service
  const app = await buildApp({ config, database, keyring, provider, costs: QUICK, logStream: { write () {} } })
  t.teardown(() => app.close())
  return app
}

t.test('a service that was down closes every period that is over, in one go and in order', async (t) => {
  const caller = await service.organization()
  await subscribe(caller)
  await begunBefore(4, caller)
  const app = await instance(t)
  app.billing.wake()
  await background({ billing: { wake () {} } }, async () => (await invoicesOf(caller)).length === 5)
  t.strictSame(await numbersOf(caller), [1, 2, 3, 4, 5])
  const periods = (await rows('invoices', caller)).sort((a, b) => Number(a.number) - Number(b.number))
    .slice(1).map(({ lines }) => (lines as { period_start: string, period_end: string }[])[0]!)
  for (const [i, { period_start }] of periods.slice(1).entries()) t.equal(period_start, periods[i]!.period_end)
  const { attributes } = (await bill(caller, 'GET', 'subscription')).body.data
  t.equal(attributes.current_period_end, periods.at(-1)!.period_end)
  t.ok(Date.parse(attributes.current_period_end) > Date.now())
  t.strictSame((await eventsOf(service, caller)).slice(1), Array.from({ length: 4 }, () => 'subscription.renew'))
})

t.test('two workers and a change at once make each invoice once, and leave no number out', async (t) => {
  const callers = await Promise.all(Array.from({ length: 4 }, () => service.organization()))
  await Promise.all(callers.map((caller) => subscribe(caller)))
  await begunBefore(3, ...callers)
  const [one, other] = [await instance(t), await instance(t)]
  one.billing.wake()
  other.billing.wake()
  const changed = await bill(callers[0]!, 'PATCH', 'subscription', { interval: 'year' })
  t.equal(changed.status, 200)
  await background({ billing: { wake () {} } }, async () =>
    (await Promise.all(callers.map(async (caller) => (await invoicesOf(caller)).length >= 4))).every(Boolean))
  await Promise.all([one.billing.stop(), other.billing.stop()])
  for (const [i, caller] of callers.entries()) {
    t.strictSame(await numbersOf(caller), i === 0 ? [1, 2, 3, 4, 5] : [1, 2, 3, 4])
    const begins = (await rows('invoices', caller)).map(({ lines }) => (lines as { period_start: string }[])[0]!.period_start)
    t.equal(new Set(begins).size, begins.length, 'no period twice')
  }
})

t.test('a period that began while the coupon was good has it, however late it is invoiced', async (t) => {
  const caller = await service.organization()
  await service.sql("INSERT INTO coupons (code, percent_off) VALUES ('QUARTER', 25)")
  t.equal((await bill(caller, 'POST', 'coupons', { code: 'QUARTER' })).status, 201)
  await subscribe(caller)
  await begunBefore(4, caller)
  // The periods began three, two and one month ago, and today. The coupon was valid for the first two.
  await service.sql("UPDATE coupons SET valid_until = now() - interval '40 days' WHERE code = 'QUARTER'")
  const app = await instance(t)
  await background(app, async () => (await invoicesOf(caller)).length === 5)
  t.strictSame((await invoicesOf(caller)).map(({ attributes: { discount } }) => discount), [0, 0, 725, 725, 725])
})

t.test('a subscription keeps the price that it began with, whatever the catalogue says by then', async (t) => {
  const caller = await service.organization()
  await subscribe(caller)
  const price = { plan: 'pro', interval: 'month', currency: 'EUR' } as const
  await setPrice(service.database, { ...price, amount: 3900 })
  t.teardown(() => setPrice(service.database, { ...price, amount: 2900 }))
  t.equal((await bill(caller, 'GET', 'subscription')).body.data.attributes.amount, 2900)
  t.equal((await bill(caller, 'PATCH', 'subscription', { plan: 'pro' })).body.data.attributes.amount, 2900)
  await begunBefore(1, caller)
  const app = await instance(t)
  await background(app, async () => (await invoicesOf(caller)).length === 2)
  t.equal((await invoicesOf(caller))[0]!.attributes.total, 2900)
  await setPrice(service.database, { ...price, amount: null })
  await begunBefore(1, caller)
  await background(app, async () => (await invoicesOf(caller)).length === 3)
  t.equal((await invoicesOf(caller))[0]!.attributes.total, 2900, 'also when it is offered no more')
  await setPrice(service.database, { ...price, amount: 3900 })
  const late = await service.organization()
  await subscribe(late)
  t.equal((await invoicesOf(late))[0]!.attributes.total, 3900, 'who comes later pays what it costs then')
})

t.test('what is over is closed before it is changed, also when the background was not there yet', async (t) => {
  const [ended, went, changed] = await Promise.all(Array.from({ length: 3 }, () => service.organization({ plan: 'free' })))
  for (const caller of [ended!, went!, changed!]) await subscribe(caller)
  await bill(ended!, 'DELETE', 'subscription')
  await bill(went!, 'DELETE', 'subscription')
  await begunBefore(1, ended!, went!, changed!)
  t.equal((await bill(ended!, 'POST', 'subscription/resume', {})).body.error, 'no_subscription', 'it is too late')
  t.equal(await planOf(ended!), 'self-hosted')
  t.strictSame(await numbersOf(ended!), [1], 'and costs nothing more')
  t.equal((await subscribe(went!, { plan: 'team' })).status, 201, 'a new one can begin')
  t.strictSame(await eventsOf(service, went!), [
    'subscription.create', 'subscription.cancel', 'subscription.end', 'subscription.create'
  ])
  t.equal((await bill(changed!, 'PATCH', 'subscription', { plan: 'team' })).status, 200)
  t.strictSame((await invoicesOf(changed!)).map(({ attributes: { total } }) => total), [9900, 2900, 2900])
  t.strictSame(await eventsOf(service, changed!), ['subscription.create', 'subscription.renew', 'subscription.update'])
})

/**
 * Calls `cut` before, during or after the first statement that matches. Returns a function that says whether it did so.
 */
function cutAt (when: 'before' | 'during' | 'after', what: RegExp, cut: () => void): () => boolean {
  let isCut = false
  const look = (message: unknown) => {
    const { phase, text } = message as { phase: 'before' | 'after', text: string }
    if (phase !== (when === 'after' ? 'after' : 'before') || !what.test(text)) return
    unsubscribe('strongroom:statement', look)
    isCut = true
    // The statement is already sent, but its result is unknown.
    if (when === 'during') setImmediate(cut)
    else cut()
  }
  listen('strongroom:statement', look)
  return () => isCut
}

t.test('a crash anywhere between charge, invoice, order and outcome asks for the money once', {
  skip: process.env.TEST_DATABASE_URL === undefined && 'a connection is cut on its way to a server'
}, async (t) => {
  const { database, url, drop } = await freshDatabase()
  t.teardown(async () => {
    await database.close()
    await drop()
  })
  const { keyring, config } = service
  await openRows(database, keyring)
  const organization = await makeOrganization(database.db, keyring)
  const token = await makeToken(database.db, organization, ['*'])
  const { provider, ledger } = processor()
  const build = (on: Database) =>
    buildApp({
      config, database: on, keyring, provider, costs: QUICK, patienceOfProvider: 100, logStream: { write () {} }
    })
  const ask = async (app: Awaited<ReturnType<typeof build>>, key: string) => (await app.inject({
    method: 'POST',
    url: `/api/v1/organizations/${organization}/billing/charges`,
    headers: { authorization: `Bearer ${token}`, 'idempotency-key': key },
    payload: { amount: 100, currency: 'EUR', description: 'Onboarding' }
  })).statusCode
  const state = async () => {
    const [row] = await beside(async () => await database.db.execute(sql.raw(`SELECT
      (SELECT count(*)::int FROM invoices) AS invoices, (SELECT coalesce(max(number), 0)::int FROM invoices) AS last,
      (SELECT count(*)::int FROM charges) AS charges,
      (SELECT count(*)::int FROM charges WHERE status = 'succeeded') AS paid,
      (SELECT count(*)::int FROM audit_events WHERE action = 'charge.create') AS asked,
      (SELECT count(*)::int FROM audit_events WHERE action = 'invoice.pay') AS events`)) as unknown as Record<string, number>[])
    return row
  }
  const points = [
    ['before', /insert into "charges"/], ['after', /insert into "charges"/], ['before', /^commit/],
    ['during', /^commit/], ['after', /^commit/], ['before', /update "charges" set "asked_at"/],
    ['after', /update "charges" set "asked_at"/], ['before', /update "invoices"/],
    ['after', /update "charges" set "provider_reference"/]
  ] as const
  const whole = await build(database)
  t.teardown(() => whole.close())
  let done = 0
  for (const [when, what] of points) {
    const way = await openWay(url!)
    const broken = await connect({ url: way.url, pool: 4 })
    await openRows(broken, keyring)
    const app = await build(broken)
    const name = `${when}-${what.source.replace(/\W/g, '')}`
    const isCut = cutAt(when, what, way.cut)
    await ask(app, name)
    await background(app, isCut)
    await app.close()
    await broken.close()
    await way.close()
    let status = await ask(whole, name)
    // The server may not know yet that the first client has disconnected.
    for (let more = 0; status === 409 && more < 40; more++) {
      await new Promise((resolve) => { setTimeout(resolve, 25) })
      status = await ask(whole, name)
    }
    t.equal(status, 201, `${name}: asked again`)
    done++
    await background(whole, async () => (await state())!.paid === done)
    t.match(await state(), { invoices: done, last: done, charges: done, paid: done, asked: done, events: done }, name)
    t.equal(ledger.size, done, `${name}: moved once`)
  }
})
