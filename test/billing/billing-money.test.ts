// runs: one database
import t, { type Test } from 'tap'
import { buildApp } from '../../src/app.ts'
import { describeRefunds, exportInvoices, refundCharge, settle } from '../../src/commands/billing/billing.ts'
import { setOrganization } from '../../src/commands/people/organizations.ts'
import type { Outcome, Provider } from '../../src/billing/provider.ts'
import { reportCharge, reportRefund } from '../../src/billing/settlement.ts'
import type { Charge, Refund } from '../../src/repositories/billing/invoices.ts'
import { startIsolatedApp, type Caller } from '../helpers/app.ts'
import { background, bill, charge, eventsOf, invoicesOf, processor, rowsOf, subscribe } from '../helpers/billing.ts'
import { random } from '../helpers/traffic.ts'

// This file has its own database, because the billing worker works on all organizations of a database.
const service = await startIsolatedApp(t)
await service.app.billing.stop()
const rows = rowsOf(service)
const change = (caller: Caller, body: object) => bill(caller, 'PATCH', 'subscription', body)
const refund = (caller: Caller, id: string, body: object = {}) => bill(caller, 'POST', `charges/${id}/refund`, body)
const creditOf = async (caller: Caller) =>
  Object.fromEntries((await rows('credits', caller)).map(({ currency, amount }) => [currency, Number(amount)]))
/** Moves a subscription into its period of 30 days, so that this number of days has passed. */
const spend = (caller: Caller, days: number) => service.sql(`UPDATE subscriptions SET
  period_start = now() - interval '${days} days', period_end = now() + interval '${30 - days} days'
  WHERE organization_id = '${caller.organization}'`)
const latest = async (caller: Caller) => (await invoicesOf(caller))[0]!
/** Reports an outcome of the provider like the background worker. */
const report = async (of: 'charge' | 'refund', caller: Caller, id: string, outcome: Outcome) => {
  const row = (await rows(`${of}s`, caller)).find((row) => row.id === id)!
  return of === 'charge'
    ? reportCharge(service.database.db, row as unknown as Charge, outcome)
    : reportRefund(service.database.db, row as unknown as Refund, outcome)
}

/** The sums of an organization's ledger by currency. Fails if the rows are inconsistent. */
async function audit (t: Test, caller: Caller, step: string) {
  const [invoices, charges, refunds, credit] = await Promise.all([
    rows('invoices', caller), rows('charges', caller), rows('refunds', caller), creditOf(caller)
  ])
  const sum = (list: Record<string, any>[], of: (row: Record<string, any>) => unknown) =>
    list.reduce((all, row) => all + Number(of(row)), 0)
  for (const currency of new Set(invoices.map((row) => row.currency as string))) {
    const its = (list: Record<string, any>[]) => list.filter((row) => row.currency === currency)
    const received = sum(its(charges).filter(({ status }) => status === 'succeeded'), ({ amount }) => amount)
    const refunded = sum(its(charges), (row) => row.refunded)
    const outstanding = credit[currency] ?? 0
    const left = received - refunded - outstanding
    if (left < 0) t.fail(`${step}: ${received} received, ${refunded} refunded, ${outstanding} in credit`)
    const given = sum(its(invoices).filter(({ status }) => status === 'paid'), ({ unused }) => unused)
    const used = sum(its(invoices).filter(({ status }) => status !== 'void'), (row) => row.credit)
    if (outstanding !== given - used) t.fail(`${step}: ${outstanding} in credit, ${given} given, ${used} used`)
  }
  for (const row of charges) {
    const gone = sum(refunds.filter(({ charge_id, status }) => charge_id === row.id && status !== 'failed'),
      ({ amount }) => amount)
    if (Number(row.refunded) !== gone) t.fail(`${step}: ${row.refunded} is not the ${gone} of its refunds`)
    if (gone > 0 && row.status !== 'succeeded') t.fail(`${step}: what was not received went back`)
    const invoice = invoices.find(({ id }) => id === row.invoice_id)!
    if (invoice.status === 'paid' && row.status !== 'succeeded') t.fail(`${step}: a paid invoice is owed`)
  }
  return charges
}

t.test('what was not received becomes no credit: not of an invoice that is open, void or paid back', async (t) => {
  const open = await service.organization()
  await subscribe(open, { plan: 'team' })
  await spend(open, 15)
  await change(open, { plan: 'pro' })
  const [second, first] = await invoicesOf(open)
  t.match(second!.attributes, { credit: 0, total: 2900, status: 'open' })
  t.same(await creditOf(open), {})
  await settle(service.database, 'invoice', 'paid', first!.id)
  const { EUR } = await creditOf(open)
  t.ok(EUR! >= 4940 && EUR! <= 4950, `${EUR}: what was not used is there once it is paid`)

  const gone = await service.organization()
  await subscribe(gone, { plan: 'team' })
  await settle(service.database, 'invoice', 'void', (await latest(gone)).id)
  await change(gone, { plan: 'pro' })
  t.match((await latest(gone)).attributes, { credit: 0, total: 2900 })
  t.same(await creditOf(gone), {})

  const back = await service.organization()
  await subscribe(back, { plan: 'team' })
  const { id, attributes } = await latest(back)
  await settle(service.database, 'invoice', 'paid', id)
  t.equal((await refund(back, attributes.charge_id, { amount: 4900 })).status, 201)
  await spend(back, 15)
  await change(back, { plan: 'pro' })
  const { attributes: { credit } } = await latest(back)
  t.ok(credit >= 2490 && credit <= 2500, `${credit}: half of the 5000 that were left of it`)
  const over = await refund(back, attributes.charge_id)
  t.strictSame([over.status, over.body.data.attributes.amount], [201, 5000 - credit], 'what became credit stays')
  t.strictSame((await refund(back, attributes.charge_id)).body.details, { left: 0 })
  await audit(t, back, 'at the end')
})

t.test('a void invoice gives back the credit that it took, in its currency, whatever has come since', async (t) => {
  const caller = await service.organization()
  await subscribe(caller, { plan: 'team' })
  await settle(service.database, 'invoice', 'paid', (await latest(caller)).id)
  await change(caller, { plan: 'enterprise' })
  const { id, attributes: { credit } } = await latest(caller)
  t.ok(credit > 9890 && credit <= 9900)
  await service.sql(`DELETE FROM subscriptions WHERE organization_id = '${caller.organization}'`)
  await subscribe(caller, { plan: 'pro', currency: 'USD' })
  t.match((await latest(caller)).attributes, { credit: 0, total: 2900, currency: 'USD' })
  await settle(service.database, 'invoice', 'void', id)
  t.same(await creditOf(caller), { EUR: credit })
  await audit(t, caller, 'at the end')
})

t.test('the money adds up after each of 240 steps in whatever order', { timeout: 120_000 }, async (t) => {
  const next = random(17)
  const pick = <T>(list: readonly T[]): T | undefined => list[Math.floor(next() * list.length)]
  const caller = await service.organization()
  const open = async () => (await rows('invoices', caller)).filter(({ status }) => status === 'open')
  const said = () => ({ status: pick(['succeeded', 'failed', 'pending'] as const)!, reference: `r${next()}` })
  const received = async () => (await rows('charges', caller)).filter(({ status }) => status === 'succeeded')
  const steps = {
    subscribe: () => subscribe(caller, { plan: pick(['pro', 'team'])!, currency: pick(['EUR', 'EUR', 'USD'])! }),
    change: () => change(caller, { plan: pick(['pro', 'team', 'enterprise'])!, interval: pick(['month', 'year'])! }),
    days: () => spend(caller, Math.floor(next() * 30)),
    over: async () => {
      await spend(caller, 30)
      await bill(caller, 'POST', 'subscription/resume', {})
    },
    end: async () => {
      await bill(caller, 'DELETE', 'subscription')
      await spend(caller, 30)
      await bill(caller, 'POST', 'subscription/resume', {})
    },
    charge: () => charge(caller, 1 + Math.floor(next() * 5000)),
    pay: async () => {
      const invoice = pick(await open())
      if (invoice !== undefined) await settle(service.database, 'invoice', 'paid', invoice.id as string)
    },
    void: async () => {
      const invoice = pick(await open())
      if (invoice !== undefined) await settle(service.database, 'invoice', 'void', invoice.id as string)
    },
    refund: async () => {
      const one = pick(await received())
      if (one === undefined) return
      const left = Number(one.amount) - Number(one.refunded)
      await refund(caller, one.id as string, next() < 0.5 ? {} : { amount: 1 + Math.floor(next() * (left + 50)) })
    },
    refunded: async () => {
      const one = pick((await rows('refunds', caller)).filter(({ status }) => status === 'pending'))
      if (one !== undefined) await settle(service.database, 'refund', pick(['paid', 'failed'])!, one.id as string)
    },
    said: async () => {
      const one = pick(await rows('charges', caller))
      if (one !== undefined) await report('charge', caller, one.id as string, said())
    },
    saidOfRefund: async () => {
      const one = pick(await rows('refunds', caller))
      if (one !== undefined) await report('refund', caller, one.id as string, said())
    }
  }
  const names = Object.keys(steps) as (keyof typeof steps)[]
  // Steps that bring in money are as likely as all other steps together.
  const bag = [...names, 'pay', 'pay', 'pay', 'change', 'change', 'days', 'days'] as (keyof typeof steps)[]
  const seen = new Set<string>()
  for (let n = 1; n <= 240; n++) {
    const name = pick(bag)!
    await steps[name]()
    seen.add(name)
    await audit(t, caller, `step ${n}, ${name}`)
  }
  t.equal(seen.size, names.length, 'every kind of step was taken')
  const invoices = await rows('invoices', caller)
  const kinds: Record<string, (invoice: Record<string, unknown>) => boolean> = {
    paid: ({ status }) => status === 'paid',
    void: ({ status }) => status === 'void',
    'paid from credit': ({ credit }) => Number(credit) > 0,
    'cut short': ({ unused }) => Number(unused) > 0
  }
  for (const [what, is] of Object.entries(kinds)) {
    t.ok(invoices.filter(is).length > 2, `there were invoices that are ${what}`)
  }
  t.ok((await rows('refunds', caller)).length > 5)
})

t.test('two refunds at once, and one beside a change of plan, never give back more than there is', async (t) => {
  for (let round = 0; round < 5; round++) {
    const caller = await service.organization()
    await subscribe(caller, { plan: 'team' })
    const { id, attributes: { charge_id, total } } = await latest(caller)
    await settle(service.database, 'invoice', 'paid', id)
    const [one, other, changed] = await Promise.all([
      refund(caller, charge_id, { amount: total - 1 }), refund(caller, charge_id, { amount: total - 1 }),
      change(caller, { plan: 'enterprise' })
    ])
    t.ok([one, other].filter(({ status }) => status === 201).length <= 1)
    t.equal(changed.status, 200)
    await audit(t, caller, `round ${round}`)
  }
})

t.test('what the provider says after a note is kept, recorded, and counts where it is about money that came', async (t) => {
  const caller = await service.organization()
  const made = async () => (await charge(caller, 1000)).body.data as { id: string, attributes: { invoice_id: string } }
  const chargeOf = async (id: string) => (await rows('charges', caller)).find((row) => row.id === id)!
  const paid = await made()
  await settle(service.database, 'invoice', 'paid', paid.attributes.invoice_id)
  t.equal(await report('charge', caller, paid.id, { status: 'failed', reference: 'ch_1' }), 'contradiction')
  t.match(await chargeOf(paid.id), { status: 'succeeded', provider_status: 'failed', provider_reference: 'ch_1' })
  t.equal(await report('charge', caller, paid.id, { status: 'failed', reference: 'ch_1' }), undefined, 'said once')
  const same = await made()
  await settle(service.database, 'invoice', 'paid', same.attributes.invoice_id)
  t.equal(await report('charge', caller, same.id, { status: 'succeeded', reference: 'ch_2' }), 'twice')
  t.match(await chargeOf(same.id), { status: 'succeeded', provider_status: 'succeeded', provider_reference: 'ch_2' })

  const gone = await made()
  await settle(service.database, 'invoice', 'void', gone.attributes.invoice_id)
  t.equal((await refund(caller, gone.id)).body.error, 'charge_not_settled')
  t.equal(await report('charge', caller, gone.id, { status: 'succeeded', reference: 'ch_3' }), 'contradiction')
  t.match(await chargeOf(gone.id), { status: 'succeeded', provider_reference: 'ch_3' })
  t.equal((await invoicesOf(caller))[0]!.attributes.status, 'void')
  const back = (await refund(caller, gone.id)).body.data
  t.equal(back.attributes.amount, 1000, 'what came for a void invoice can go back')

  const failed = await made()
  await report('charge', caller, failed.id, { status: 'failed', reference: 'ch_4' })
  t.match(await chargeOf(failed.id), { status: 'failed' })
  await settle(service.database, 'invoice', 'paid', failed.attributes.invoice_id)
  t.match(await chargeOf(failed.id), { status: 'succeeded', provider_status: 'failed' }, 'nothing is owed any more')
  const byHand = (await refund(caller, failed.id, { amount: 10 })).body.data
  const refundOf = async (id: string) => (await rows('refunds', caller)).find((row) => row.id === id)!
  t.match(await refundOf(byHand.id), { provider: 'manual' }, 'who has the money gives it back')

  await settle(service.database, 'refund', 'failed', back.id)
  t.match(await chargeOf(gone.id), { refunded: '0' })
  t.equal(await report('refund', caller, back.id, { status: 'succeeded', reference: 're_1' }), 'contradiction')
  t.match(await refundOf(back.id), { status: 'succeeded', provider_status: 'succeeded', provider_reference: 're_1' })
  t.match(await chargeOf(gone.id), { refunded: '1000' })
  const again = (await refund(caller, same.id)).body.data
  await settle(service.database, 'refund', 'failed', again.id)
  const instead = (await refund(caller, same.id)).body.data
  t.equal(await report('refund', caller, again.id, { status: 'succeeded', reference: 're_2' }), 'contradiction')
  t.match(await refundOf(again.id), { status: 'failed', provider_status: 'succeeded' }, 'it went, and there was no room')
  t.match(await chargeOf(same.id), { refunded: '1000' })
  t.equal((await refundOf(instead.id)).status, 'pending')
  await audit(t, caller, 'at the end')
  const actions = (await eventsOf(service, caller)).filter((action) => !action.endsWith('.create'))
  t.strictSame(actions, [
    'invoice.pay', 'charge.report', 'invoice.pay', 'charge.report', 'invoice.void', 'charge.report', 'charge.fail',
    'invoice.pay', 'refund.fail', 'refund.report', 'refund.fail', 'refund.report'
  ])
  const exported = []
  for await (const line of exportInvoices(service.database)) exported.push(JSON.parse(line))
  t.match(exported.find(({ charge_id }) => charge_id === paid.id), {
    status: 'paid', charge_status: 'succeeded', noted_status: 'succeeded', provider_status: 'failed'
  })
  t.match(exported.find(({ charge_id }) => charge_id === same.id), {
    status: 'paid', charge_status: 'succeeded', noted_status: 'succeeded', provider_status: 'succeeded'
  }, 'both: it may have been received twice')
  t.match(exported.find(({ charge_id }) => charge_id === gone.id), {
    status: 'void', charge_status: 'succeeded', noted_status: 'failed', provider_status: 'succeeded'
  })
})

/** Starts another instance of the service, with a payment provider. */
async function instance (t: Test, provider: Provider, patienceOfProvider = 100) {
  const { database, keyring, config } = service
  const logs: string[] = []
  const app = await buildApp({
    config, database, keyring, provider, patienceOfProvider, logStream: { write: (line) => { logs.push(line) } }
  })
  t.teardown(() => app.close())
  return { app, logs }
}

/** Requests a charge from an instance. */
async function ask (
  app: Awaited<ReturnType<typeof instance>>['app'], caller: Caller, amount: number, headers: Record<string, string> = {}
) {
  const response = await app.inject({
    method: 'POST',
    url: `/api/v1/organizations/${caller.organization}/billing/charges`,
    headers: { authorization: `Bearer ${caller.token}`, ...headers },
    payload: { amount, currency: 'EUR', description: 'Onboarding' }
  })
  if (response.statusCode !== 201) throw new Error(response.payload)
  return response.json().data as { id: string, attributes: { invoice_id: string } }
}

t.test('what comes from the provider while the operator notes something else down is not lost', async (t) => {
  const { provider, ledger, state, speak } = processor()
  const { app, logs } = await instance(t, provider, 60_000)
  const caller = await service.organization()
  state.mode = 'silent'
  const { id, attributes } = await ask(app, caller, 700)
  await background(app, () => ledger.has(id))
  await settle(service.database, 'invoice', 'void', attributes.invoice_id)
  speak()
  await background(app, async () => (await rows('charges', caller))[0]!.provider_status !== null)
  t.match(await rows('charges', caller), [{ status: 'succeeded', provider_reference: `ch_${id}` }])
  t.strictSame(await eventsOf(service, caller), ['charge.create', 'invoice.void', 'charge.report'])
  t.ok(logs.some((line) => line.includes('contradicts the recorded outcome') && line.includes(id)))
})

t.test('what was noted down as moved and the provider moved, too, is a warning with its ids', async (t) => {
  const { provider, ledger, state, speak } = processor()
  const { app, logs } = await instance(t, provider, 60_000)
  const caller = await service.organization()
  const warned = (id: string) => logs.map((line) => JSON.parse(line) as Record<string, unknown>)
    .find((line) => String(line.msg).includes('may have moved twice') && [line.charge, line.refund].includes(id))

  state.mode = 'silent'
  const { id, attributes: { invoice_id } } = await ask(app, caller, 700)
  await background(app, () => ledger.has(id))
  t.match(await settle(service.database, 'invoice', 'paid', invoice_id), /Warning/)
  speak()
  await background(app, () => warned(id) !== undefined)
  t.match(warned(id), { organization: caller.organization, charge: id, invoice: invoice_id, outcome: 'succeeded' })
  t.strictSame(await eventsOf(service, caller), ['charge.create', 'invoice.pay', 'charge.report'])

  state.mode = 'up'
  const well = await ask(app, caller, 800)
  await background(app, async () => (await rows('charges', caller)).some(({ id, status }) =>
    id === well.id && status === 'succeeded'))
  state.mode = 'silent'
  const back = (await refund(caller, well.id)).body.data.id as string
  await background(app, () => ledger.has(back))
  await settle(service.database, 'refund', 'paid', back)
  speak()
  await background(app, () => warned(back) !== undefined)
  t.match(warned(back), { organization: caller.organization, refund: back, outcome: 'succeeded' })
  t.notOk(warned(well.id), 'what the provider alone moved is none')
})

t.test('refunds that may have moved twice are listed until an operator has reviewed them', async (t) => {
  const caller = await service.organization()
  const { id, attributes: { invoice_id } } = (await charge(caller, 1000)).body.data
  await settle(service.database, 'invoice', 'paid', invoice_id)
  await report('charge', caller, id, { status: 'succeeded', reference: 'ch_1' })
  const listed = async () => {
    const states: string[] = []
    for await (const line of describeRefunds(service.database)) {
      if (line.includes(caller.organization)) states.push(line.split('\t').at(-1)!)
    }
    return states
  }
  const made = async () => (await refund(caller, id, { amount: 10 })).body.data.id as string
  // Marks a refund like the background worker before its request to the provider.
  const asked = async () => {
    const its = await made()
    await service.sql(`UPDATE refunds SET provider = 'processor', asked_at = now()
      WHERE organization_id = '${caller.organization}' AND id = '${its}'`)
    return its
  }
  const check = (its: string) => settle(service.database, 'refund', 'checked', its)
  const says = (its: string, status: Outcome['status']) =>
    report('refund', caller, its, { status, reference: `re_${its}` })

  const byHand = await made()
  await service.sql(`UPDATE refunds SET provider = 'manual', asked_at = now()
    WHERE organization_id = '${caller.organization}' AND id = '${byHand}'`)
  t.strictSame(await listed(), ['pending'])
  await t.rejects(check(byHand), /needs no review/)
  await settle(service.database, 'refund', 'paid', byHand)
  const well = await asked()
  await says(well, 'succeeded')
  const failed = await asked()
  await settle(service.database, 'refund', 'failed', failed)
  await says(failed, 'failed')
  t.strictSame(await listed(), [], 'only one of them moved it, or both report that they did not')

  const twice = await asked()
  await settle(service.database, 'refund', 'paid', twice)
  t.strictSame(await listed(), ['unanswered'])
  t.equal(await check(twice), 'Changed.')
  t.strictSame(await listed(), [])
  await says(twice, 'succeeded')
  t.strictSame(await listed(), ['twice'], 'it has said something since')
  const other = await asked()
  await settle(service.database, 'refund', 'failed', other)
  await says(other, 'succeeded')
  await says(well, 'failed')
  t.strictSame(await listed(), ['contradiction', 'twice', 'contradiction'])
  for (const its of [well, twice, other]) await check(its)
  t.strictSame(await listed(), [])
  await says(twice, 'succeeded')
  t.strictSame(await listed(), [], 'what it repeats is nothing new')
  await t.rejects(check(twice), /needs no review/)
  t.equal((await eventsOf(service, caller)).filter((action) => action === 'refund.check').length, 4)
  await audit(t, caller, 'at the end')
})

t.test('an operator’s entry ends an unsent order; a sent order is requested again until it is answered', async (t) => {
  const { provider, ledger, asked, state } = processor()
  const caller = await service.organization()
  const first = await instance(t, provider)
  const rowOf = async (table: 'charges' | 'refunds', id: string) =>
    (await rows(table, caller)).find((row) => row.id === id)!
  const chargeOf = (id: string) => rowOf('charges', id)
  const refundOf = (id: string) => rowOf('refunds', id)
  const held = await ask(first.app, caller, 1000)
  await background(first.app, async () => (await chargeOf(held.id)).status === 'succeeded')
  state.mode = 'silent'
  const told = await ask(first.app, caller, 100)
  await background(first.app, () => ledger.has(told.id))
  const sent = (await refund(caller, held.id, { amount: 10 })).body.data.id
  await background(first.app, () => ledger.has(sent))
  await first.app.billing.stop()
  const untold = await ask(first.app, caller, 200)
  const unsent = (await refund(caller, held.id, { amount: 20 })).body.data.id
  const { database } = service
  const warning = /^Changed\. Warning: processor was also requested .* has not reported a result.* may move twice/
  t.match(await settle(database, 'invoice', 'paid', told.attributes.invoice_id), warning)
  t.match(await settle(database, 'refund', 'paid', sent), warning)
  t.equal(await settle(database, 'invoice', 'paid', untold.attributes.invoice_id), 'Changed.')
  t.equal(await settle(database, 'refund', 'paid', unsent), 'Changed.')
  state.mode = 'up'
  asked.length = 0
  const { app } = await instance(t, provider)
  await background(app, async () =>
    (await chargeOf(told.id)).provider_status !== null && (await refundOf(sent)).provider_status !== null)
  t.match(await chargeOf(told.id), { status: 'succeeded', provider_reference: `ch_${told.id}` })
  t.match(await refundOf(sent), { status: 'succeeded', provider_reference: `re_${sent}` })
  t.strictSame(new Set(asked), new Set([told.id, sent]), 'what was never told goes before, and did not go')
  await audit(t, caller, 'at the end')
})

t.test('what is settled while another is asked is not told; refunds take turns with charges', async (t) => {
  const { provider, ledger, asked, state, speak } = processor()
  const caller = await service.organization()
  const maker = await instance(t, provider)
  const held = await ask(maker.app, caller, 1000)
  await background(maker.app, async () => (await rows('charges', caller))[0]!.status === 'succeeded')
  await maker.app.billing.stop()
  const [first, gone, last] = [
    await ask(maker.app, caller, 100), await ask(maker.app, caller, 200), await ask(maker.app, caller, 300)
  ]
  const sent = (await refund(caller, held.id, { amount: 10 })).body.data.id
  const paid = (await refund(caller, held.id, { amount: 20 })).body.data.id
  asked.length = 0
  state.mode = 'silent'
  const { app } = await instance(t, provider, 60_000)
  await background(app, () => ledger.has(first.id))
  await settle(service.database, 'invoice', 'void', gone.attributes.invoice_id)
  await settle(service.database, 'refund', 'paid', paid)
  state.mode = 'up'
  speak()
  await background(app, async () => (await rows('charges', caller)).some(({ id, status }) =>
    id === last.id && status === 'succeeded'))
  t.strictSame(asked, [first.id, sent, last.id])
})

t.test('an unanswered order waits longer after each request, of any instance, and delays no other order', async (t) => {
  const { provider, asked } = processor()
  const caller = await service.organization()
  const maker = await instance(t, provider)
  await maker.app.billing.stop()
  const orders = []
  for (let n = 1; n <= 4; n++) orders.push((await ask(maker.app, caller, n)).id)
  const [waiting, due, fresh, elsewhere] = orders as [string, string, string, string]
  const before = async (id: string, created: string, lately: string) => service.sql(`UPDATE charges
    SET created_at = now() - interval '${created}', asked_at = now() - interval '${lately}'
    WHERE organization_id = '${caller.organization}' AND id = '${id}'`)
  await before(waiting, '3 hours', '30 minutes')
  await before(due, '21 minutes', '20 minutes')
  await before(elsewhere, '1 second', '1 second')
  const { app } = await instance(t, provider, 10_000)
  await background(app, () => asked.includes(due))
  t.strictSame(asked, [fresh, due], 'never told, then asked longest ago of those that have waited enough')
  await before(waiting, '3 hours', '61 minutes')
  await background(app, () => asked.includes(waiting))
  t.notOk(asked.includes(elsewhere))
})

t.test('what became of an order is not unsaid by an earlier answer that comes late', async (t) => {
  const caller = await service.organization()
  const { id, attributes } = (await charge(caller, 1000)).body.data
  await settle(service.database, 'invoice', 'void', attributes.invoice_id)
  const succeeded = { status: 'succeeded', reference: 'ch_1' } as const
  for (const [outcome, doubt] of [
    [succeeded, 'contradiction'], [{ status: 'pending', reference: null }, undefined], [succeeded, undefined]
  ] as const) t.equal(await report('charge', caller, id, outcome), doubt)
  t.match(await rows('charges', caller), [{ status: 'succeeded', provider_status: 'succeeded' }])
  const back = (await refund(caller, id)).body.data.id
  await report('refund', caller, back, { status: 'failed', reference: 're_1' })
  await report('refund', caller, back, { status: 'pending', reference: 're_1' })
  t.match(await rows('refunds', caller), [{ status: 'failed', provider_status: 'failed' }])
  t.strictSame(await eventsOf(service, caller), [
    'charge.create', 'invoice.void', 'charge.report', 'refund.create', 'refund.fail'
  ])
})

t.test('an unsent charge of a deleted organization is never sent; its refunds still are', async (t) => {
  const { provider, asked } = processor()
  const { app } = await instance(t, provider)
  const caller = await service.organization()
  const paid = await ask(app, caller, 300)
  await background(app, () => asked.includes(paid.id))
  await background(app, async () => (await rows('charges', caller)).every(({ status }) => status === 'succeeded'))
  await app.billing.stop()
  const untold = await ask(app, caller, 100)
  const { id: owed } = (await refund(caller, paid.id, { amount: 50 })).body.data
  t.equal((await caller.call('DELETE', `/organizations/${caller.organization}`, { confirmed: true })).status, 204)
  t.match((await rows('charges', caller)).find(({ id }) => id === untold.id), { status: 'failed', asked_at: null })
  t.match((await rows('invoices', caller)).find(({ id }) => id === untold.attributes.invoice_id), { status: 'open' })
  const rest = await refundCharge(service.database, paid.id, undefined)
  // Orders of a later organization are sent after all earlier orders.
  const other = await service.organization()
  const again = await instance(t, provider)
  const later = await ask(again.app, other, 200)
  await background(again.app, async () => asked.includes(later.id) &&
    (await rows('refunds', caller)).every(({ status }) => status === 'succeeded'))
  t.notOk(asked.includes(untold.id))
  t.ok(asked.includes(owed) && asked.includes(rest), 'what was refunded before and after it went')
  t.match((await rows('charges', caller)).find(({ id }) => id === paid.id), { refunded: '300' })
})

t.test('an order is told to the provider that it was asked of, and to no other that is configured later', async (t) => {
  const first = processor('first')
  const second = processor('second')
  const caller = await service.organization()
  const one = await instance(t, first.provider)
  first.state.mode = 'down'
  const theirs = await ask(one.app, caller, 100)
  await background(one.app, () => first.asked.includes(theirs.id))
  await one.app.close()
  const other = await instance(t, second.provider)
  const own = await ask(other.app, caller, 200)
  await background(other.app, async () => (await rows('charges', caller)).some(({ id, status }) =>
    id === own.id && status === 'succeeded'))
  t.strictSame(second.asked, [own.id])
  first.state.mode = 'up'
  const again = await instance(t, first.provider)
  await background(again.app, () => first.ledger.has(theirs.id))
  t.notOk(first.asked.includes(own.id))
})

t.test('a charge with an Idempotency-Key is sent to the provider after its commit, as one without', async (t) => {
  const { provider, asked } = processor()
  const { app } = await instance(t, provider)
  const caller = await service.organization()
  const { id } = await ask(app, caller, 100, { 'idempotency-key': 'charge-1' })
  // Does not wake the worker of the instance; it runs every 30 s.
  await background({ billing: { wake () {} } }, () => asked.includes(id))
})

t.test('a provider that says nothing holds up no period, and no end of the service', async (t) => {
  const { provider, asked, state } = processor()
  const { app } = await instance(t, provider, 600_000)
  const caller = await service.organization()
  const other = await service.organization()
  await subscribe(other)
  state.mode = 'silent'
  const { id } = await ask(app, caller, 100)
  await background(app, () => asked.includes(id))
  await spend(other, 30)
  await background(app, async () => (await invoicesOf(other)).length === 2)
  t.match(await rows('charges', caller), [{ status: 'pending', submitted_at: null }])
  await app.close()
  t.match(await rows('charges', caller), [{ submitted_at: null }], 'it is asked again, by its id')
})

t.test('a suspended organization is not billed on; when it is active again, its next period begins', async (t) => {
  const caller = await service.organization()
  const { app } = await instance(t, processor().provider)
  await subscribe(caller)
  await setOrganization(service.database, caller.organization, { status: 'suspended' })
  await service.sql(`UPDATE subscriptions SET anchor = now() - interval '100 days', period_start = now() - interval '100 days',
    period_end = now() - interval '70 days' WHERE organization_id = '${caller.organization}'`)
  // The bill of a later organization shows that the background job has run.
  const other = await service.organization()
  await subscribe(other)
  await spend(other, 30)
  await background(app, async () => (await invoicesOf(other)).length === 2)
  t.equal((await invoicesOf(caller)).length, 1)
  await setOrganization(service.database, caller.organization, { status: 'active' })
  await background(app, async () => (await invoicesOf(caller)).length > 1)
  t.equal((await invoicesOf(caller)).length, 2, 'one period, not those between')
  const [{ begins, ends }] = await service.sql(`SELECT period_start > now() - interval '1 hour' AS begins,
    period_end = anchor + interval '1 month' AS ends FROM subscriptions
    WHERE organization_id = '${caller.organization}'`) as [{ begins: boolean, ends: boolean }]
  t.strictSame([begins, ends], [true, true])
  await setOrganization(service.database, caller.organization, { status: 'suspended' })
  await setOrganization(service.database, caller.organization, { status: 'active' })
  t.equal((await invoicesOf(caller)).length, 2, 'what is paid for goes on')
})
