// runs: one database
import t, { type Test } from 'tap'
import { buildApp } from '../../src/app.ts'
import { describeRefunds, exportInvoices, refundCharge, settle } from '../../src/commands/billing/billing.ts'
import { renderInvoice, type PrintedInvoice } from '../../src/billing/invoice-page.ts'
import { generateMasterKey } from '../../src/crypto/keyring.ts'
import { sha256 } from '../../src/crypto/primitives.ts'
import { formatMoney, holdsCardNumber, periodEnd, unusedOf } from '../../src/rules/billing.ts'
import { makeLevel, startIsolatedApp, type Answer, type Caller, type TestApp } from '../helpers/app.ts'
import { background, bill, charge, eventsOf, invoicesOf, path, processor, rowsOf, subscribe } from '../helpers/billing.ts'
import { command, emptyPlace } from '../helpers/process.ts'
import { until } from '../helpers/until.ts'

// This file has its own database, because the billing worker works on all organizations of a database.
const service = await startIsolatedApp(t)
const rows = rowsOf(service)
const planOf = async (caller: Caller) => (await caller.call('GET', '/organization')).body.data.attributes.plan_name

/** Sends invalid bodies. The service must refuse each of them with the right error and change nothing. */
async function refusesAll (
  t: Test, caller: Caller, send: (body: object) => Promise<Answer>,
  bad: [body: object, error: string, member?: string][]
) {
  // Sorted, because the order of a query without ORDER BY can change with its plan.
  const sorted = async (table: string) => (await rows(table, caller)).map((row) => JSON.stringify(row)).sort()
  const state = () => Promise.all(
    ['billing_accounts', 'credits', 'coupon_redemptions', 'subscriptions', 'payment_methods', 'invoices', 'charges', 'refunds', 'audit_events']
      .map(sorted)
  )
  const before = await state()
  for (const [body, error, member] of bad) {
    const answer = await send(body)
    t.strictSame([answer.status, answer.body.error], [422, error], JSON.stringify(body))
    if (member !== undefined) t.strictSame(Object.keys(answer.body.errors), [member])
  }
  t.strictSame(await state(), before, 'nothing was changed')
}

// The examples in the registry of ISO 13616.
const IBANS = [
  'AT61 1904 3002 3457 3201', 'BE68 5390 0754 7034', 'CH93 0076 2011 6238 5295 7', 'DE89 3704 0044 0532 0130 00',
  'DK50 0040 0440 1162 43', 'ES91 2100 0418 4502 0005 1332', 'FR14 2004 1010 0505 0001 3M02 606',
  'GB29 NWBK 6016 1331 9268 19', 'IE29 AIBK 9311 5212 3456 78', 'IT60 X054 2811 1010 0000 0123 456',
  'LT12 1000 0111 0100 1000', 'NL91 ABNA 0417 1643 00', 'NO93 8601 1117 947', 'PL61 1090 1014 0000 0712 1981 2874',
  'SE45 5000 0000 0583 9825 7466'
]

t.test('periods, shares, money and numbers of cards are what they should be', async (t) => {
  const day = (text: string) => new Date(`${text}T12:00:00.000Z`)
  for (const [anchor, interval, n, end] of [
    ['2026-01-31', 'month', 1, '2026-02-28'], ['2026-01-31', 'month', 2, '2026-03-31'],
    ['2024-02-29', 'year', 1, '2025-02-28'], ['2024-02-29', 'year', 4, '2028-02-29'],
    ['2026-12-15', 'month', 1, '2027-01-15']
  ] as const) t.same(periodEnd(day(anchor), interval, n), day(end), `${anchor}, ${n} ${interval}`)
  t.equal(unusedOf(2900, day('2026-03-01'), day('2026-03-31'), day('2026-03-16')), 1450)
  t.equal(unusedOf(999_999_999_999, day('2026-01-01'), day('2027-01-01'), day('2026-01-01')), 999_999_999_999)
  t.equal(unusedOf(2900, day('2026-03-01'), day('2026-03-31'), day('2026-04-16')), 0)
  t.strictSame([
    formatMoney(129_000, 'EUR'), formatMoney(129_000, 'JPY'), formatMoney(129_000, 'KWD'), formatMoney(-5, 'EUR')
  ], ['1,290.00 EUR', '129,000 JPY', '129.000 KWD', '−0.05 EUR'])
  for (const text of [
    '4111111111111111', 'card 4111 1111 1111 1111.', '4111-1111-1111-1111', '４１１１１１１１１１１１１１１１', '378282246310005',
    '4111 1111 1111 1111 123', '4111111111111111 12/28', 'Visa 4111-1111-1111-1111 12/28', '12 4111 1111 1111 1111',
    '4111  1111  1111  1111', '4111 - 1111 - 1111 - 1111', '5500 0000 0000 0004 321', 'VISA4111111111111111 12/28',
    '4111\u00a01111\u20111111\u200b 1111', '2026-03-01 5500 0000 0000 0004', '3782 822463 10005 1234', '6011/0009/9013/9424',
    'DE89 3704 0044 0532 0130 00 4111 1111 1111 1111', 'AB12 4111 1111 1111 1111', '9792 0303 9444 0796'
  ]) t.ok(holdsCardNumber(text), text)
  for (const text of [
    '4111111111111112', 'PO 2026-114', 'DE89 3704 0044 0532 0130 00', 'GB82WEST12345698765432', '+43 1 234567890',
    ...IBANS, ...IBANS.map((iban) => `IBAN ${iban} BIC COBADEFFXXX`),
    ...IBANS.map((iban) => `${iban.replaceAll(' ', '')} 2026-03-01, 0049 30 1234567`),
    ...Array.from({ length: 28 }, (_, day) => `2026-03-${day + 1} - 2026-04-${day + 1}, +49 (0) 30 / 901820-${100 + day}`),
    ...Array.from({ length: 50 }, (_, n) => `PO 45000${12345 + n} 2026-03-01, R3W5X1Y0BC-${String(n).padStart(6, '0')}`)
  ]) t.notOk(holdsCardNumber(text), text)
})

t.test('the catalogue of plans needs only a token, also one of an organization that is not active', async (t) => {
  const caller = await service.organization({ abilities: ['secret:read'] })
  await service.sql(`UPDATE organization_counters SET status = 'locked' WHERE organization_id = '${caller.organization}'`)
  const { status, body } = await caller.call('GET', '/plans')
  t.equal(status, 200)
  t.strictSame(body.data.map(({ id }: { id: string }) => id), ['free', 'pro', 'team', 'enterprise', 'self-hosted'])
  const [free, pro, , , own] = body.data
  t.match(pro.attributes, { max_projects: 50, max_bytes: 1_073_741_824, prices: [{ currency: 'EUR' }, {}, {}, {}] })
  t.strictSame([free.attributes.prices, own.attributes.prices], [[], []], 'what is free of charge has no price')
  t.equal((await service.inject({ method: 'GET', url: '/api/v1/plans' })).status, 401)
})

t.test('a subscription gives its plan at once, is invoiced, and is the same on both paths', async (t) => {
  const caller = await service.organization({ plan: 'free' })
  t.equal((await caller.call('GET', path(caller, 'subscription'))).body.error, 'no_subscription')
  for (const [method, rest, body] of [
    ['PATCH', 'subscription', { plan: 'team' }], ['DELETE', 'subscription'], ['POST', 'subscription/resume', {}]
  ] as const) t.equal((await bill(caller, method, rest, body)).body.error, 'no_subscription', `${method} ${rest}`)
  await refusesAll(t, caller, (body) => subscribe(caller, body), [
    [{}, 'validation_failed', 'plan'],
    [{ plan: 'gold' }, 'plan_not_offered'],
    [{ plan: 'free' }, 'plan_not_offered'],
    [{ plan: 'pro', currency: 'JPY' }, 'plan_not_offered'],
    [{ plan: 'pro', currency: 'eur' }, 'validation_failed', 'currency'],
    [{ plan: 'pro', interval: 'week' }, 'validation_failed', 'interval'],
    [{ plan: 'pro', price: 1 }, 'validation_failed', 'price'],
    [{ plan: 'pro\0' }, 'validation_failed', 'plan'],
    [{ plan: 'pro', billing_details: { address: 'a\n'.repeat(10) } }, 'validation_failed', 'billing_details.address'],
    [
      { plan: 'pro', billing_details: { address: 'Card 4111 1111 1111 1111' } }, 'card_number_refused',
      'billing_details.address'
    ],
    [{ plan: 'pro', billing_details: { name: 'x'.repeat(256) } }, 'validation_failed', 'billing_details.name']
  ])
  const billing_details = { name: 'Nimbus GmbH', address: 'Ringstraße 1\n1010 Wien', tax_id: 'ATU12345678' }
  const made = await caller.call('POST', path(caller, 'subscription'), { plan: 'pro', billing_details })
  t.equal(made.status, 201, made.text)
  t.match(made.body.data, {
    type: 'subscriptions',
    attributes: { plan: 'pro', interval: 'month', currency: 'EUR', amount: 2900, status: 'active', billing_details }
  })
  t.strictSame((await bill(caller, 'GET', 'subscription')).body, made.body)
  t.strictSame((await caller.call('GET', path(caller, 'subscription'))).body, made.body)
  t.equal(await planOf(caller), 'pro')
  const again = await Promise.all([subscribe(caller), subscribe(caller, { plan: 'team' })])
  t.strictSame(again.map(({ body }) => body.error), ['subscription_exists', 'subscription_exists'])
  const [invoice, ...more] = await invoicesOf(caller)
  t.same(more, [])
  t.match(invoice!.attributes, {
    number: `${caller.organization.slice(-10)}-000001`, status: 'open', total: 2900, currency: 'EUR', refunded: 0
  })
  const { body } = await bill(caller, 'GET', `invoices/${invoice!.id}`)
  t.match(body.data.attributes, { lines: [{ description: 'Plan pro, 1 month', amount: 2900 }], buyer: billing_details })
  t.strictSame((await caller.call('GET', path(caller, 'invoices'))).body.data, [invoice])
  const organization = (await caller.call('GET', '/organization')).body.data.attributes.name
  for (const name of ['', ' ']) {
    const renamed = await bill(caller, 'PATCH', 'subscription', { billing_details: { name } })
    t.strictSame(renamed.body.data.attributes.billing_details, { ...billing_details, name: organization })
  }
  t.match((await bill(caller, 'GET', 'invoices?page=7&per_page=1')).body, {
    data: [], meta: { total: 1, last_page: 1, from: null, to: null }
  })
  for (const page of ['page=0', 'per_page=101']) {
    t.equal((await bill(caller, 'GET', `invoices?${page}`)).body.error, 'validation_failed')
  }
})

/** Downloads the file of an invoice. */
const download = async ({ app }: TestApp, caller: Caller, id: string) => app.inject({
  method: 'GET',
  url: `/api/v1${path(caller, `billing/invoices/${id}/download`)}`,
  headers: { authorization: `Bearer ${caller.token}` }
})

/** The lines of text that a page shows. */
const linesOf = (page: string) => page.replace(/^[^]*<body>/, '').split(/<[^>]*>|\n/)
  .map((text) => text.replace(/&#(\d+);/g, (_, code) => String.fromCharCode(Number(code))).trim())
  .filter((line) => line !== '')

t.test('an invoice comes as an HTML page in every script, also when the organization is suspended', async (t) => {
  const own = await startIsolatedApp(t, {
    INVOICE_SELLER_NAME: 'Größe & Søn A/S',
    INVOICE_SELLER_ADDRESS: 'Østergade 1|København',
    INVOICE_PAYMENT_DETAILS: 'IBAN DK5000400440116243',
    INVOICE_NOTE: 'Ω reverse charge|¶ 2'
  })
  const caller = await own.organization()
  await bill(caller, 'POST', 'payment-methods', { kind: 'manual', label: 'Wire', reference: 'Ж-2026/114' })
  const billing_details = { name: 'Łódź Żółw 株式会社さくら 주식회사', address: 'ул. Ленина 1\nشركة התחברה', tax_id: 'PL-5' }
  await subscribe(caller, { plan: 'pro', billing_details })
  await own.sql(`UPDATE organization_counters SET status = 'suspended' WHERE organization_id = '${caller.organization}'`)
  const [invoice] = await invoicesOf(caller)
  const { number } = invoice!.attributes
  const response = await download(own, caller, invoice!.id)
  t.equal(response.statusCode, 200)
  const page = response.payload
  const style = /<style>([^]*)<\/style>/.exec(page)![1]!
  const policy = `default-src 'none'; style-src 'sha256-${sha256(style).toString('base64')}'; base-uri 'none'; form-action 'none'`
  t.match(response.headers, {
    'content-type': 'text/html; charset=utf-8',
    'content-disposition': `attachment; filename="invoice-${number}.html"`,
    'content-security-policy': `${policy}; frame-ancestors 'none'`,
    'x-content-type-options': 'nosniff',
    'cache-control': 'no-store'
  })
  t.ok(page.includes(`<meta http-equiv="content-security-policy" content="${policy.replaceAll("'", '&#39;')}">`))
  const again = await download(own, caller, invoice!.id)
  t.ok(response.rawPayload.equals(again.rawPayload), 'the same bytes each time')
  t.match(page, /^<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n/)
  t.ok(page.includes(`<title>Invoice ${number}</title>`))
  t.ok(response.rawPayload.length < 16 * 1024, `${response.rawPayload.length} bytes`)
  const day = (moment: string) => moment.slice(0, 10)
  const { issued_at, due_at } = invoice!.attributes
  const { lines: [line] } = (await bill(caller, 'GET', `invoices/${invoice!.id}`)).body.data.attributes
  t.strictSame(linesOf(page), [
    'Invoice',
    ...['From', 'Größe & Søn A/S', 'Østergade 1', 'København'],
    ...['To', 'Łódź Żółw 株式会社さくら 주식회사', 'ул. Ленина 1', 'شركة התחברה', 'Tax id', 'PL-5'],
    ...['Number', number, 'Date', day(issued_at), 'Due', day(due_at), 'Currency', 'EUR', 'Reference', 'Ж-2026/114'],
    ...['Description', 'Period', 'Amount'],
    ...['Plan pro, 1 month', `${day(line.period_start)} – ${day(line.period_end)}`, '29.00 EUR'],
    ...['Subtotal', '29.00 EUR', 'Total', '29.00 EUR'],
    ...['Ω reverse charge', '¶ 2'],
    ...[`Please pay 29.00 EUR by ${day(due_at)}, with the number ${number}:`, 'IBAN DK5000400440116243']
  ])
  for (const text of ['شركة התחברה', 'Ж-2026/114', 'Plan pro, 1 month', '¶ 2', 'IBAN DK5000400440116243']) {
    t.ok(page.includes(` dir="auto">${text}</`), `${text} has its own direction`)
  }
  t.notMatch(page, /<(?:script|img|link|a|form|iframe)\b|\b(?:src|href|on\w+)=|url\(/i, 'it loads and runs nothing')
  // The longest texts that the API accepts, each syllable once.
  const syllables = Array.from({ length: 1310 }, (_, n) => String.fromCharCode(0xac00 + 8 * n))
  const its = { name: syllables.slice(0, 255).join(''), tax_id: syllables.slice(1246).join('') }
  const address = Array.from({ length: 10 }, (_, n) => syllables.slice(255 + 99 * n, 354 + 99 * n).join('')).join('\n')
  const long = await own.organization()
  await subscribe(long, { plan: 'pro', billing_details: { ...its, address } })
  const [bulky] = await invoicesOf(long)
  const { statusCode, payload, rawPayload } = await download(own, long, bulky!.id)
  t.equal(statusCode, 200)
  t.ok(rawPayload.length < 16 * 1024)
  const shown = linesOf(payload)
  const start = shown.indexOf('To')
  t.strictSame(shown.slice(start, start + 14), ['To', its.name, ...address.split('\n'), 'Tax id', its.tax_id])
})

const PARTY = { name: 'Nimbus', address: 'Ringstraße 1', tax_id: '' }
const INVOICE: PrintedInvoice = {
  number: 'A-1',
  status: 'open',
  currency: 'EUR',
  lines: [],
  subtotal: 12_000,
  discount: 0,
  credit: 0,
  total: 12_000,
  seller: PARTY,
  buyer: PARTY,
  issued_at: new Date('2026-03-01'),
  due_at: new Date('2026-03-15'),
  paid_at: null,
  paid_back: 0,
  reference: null,
  note: ''
}

t.test('an invoice shows its state, its sums and how to pay it, as far as there is something to show', async (t) => {
  const head = ['Invoice', 'From', 'Nimbus', 'Ringstraße 1', 'To', 'Nimbus', 'Ringstraße 1', 'Number', 'A-1', 'Date', '2026-03-01', 'Due', '2026-03-15', 'Currency', 'EUR', 'Description', 'Period', 'Amount']
  const sums = ['Subtotal', '120.00 EUR', 'Total', '120.00 EUR']
  const shown = (changes: Partial<PrintedInvoice>, details = 'IBAN') =>
    linesOf(renderInvoice({ ...INVOICE, ...changes }, details))
  t.strictSame(shown({}), [...head, ...sums, 'Please pay 120.00 EUR by 2026-03-15, with the number A-1:', 'IBAN'])
  t.strictSame(shown({}, ''), [...head, ...sums])
  t.strictSame(shown({ status: 'void' }), ['Invoice', 'Void', ...head.slice(1), ...sums])
  const paid = { status: 'paid' as const, discount: 100, credit: 1900, total: 10_000, paid_back: 5000 }
  const all = ['Subtotal', '120.00 EUR', 'Coupon', '−1.00 EUR', 'Credit', '−19.00 EUR', 'Total', '100.00 EUR', 'Paid back', '−50.00 EUR']
  t.strictSame(shown(paid), ['Invoice', 'Paid', ...head.slice(1), ...all])
  t.strictSame(
    shown({ ...paid, paid_at: new Date('2026-03-04') }), ['Invoice', 'Paid on 2026-03-04', ...head.slice(1), ...all]
  )
  const moment = '2026-03-01T12:00:00.000Z'
  const lines = [null, moment].map((end) =>
    ({ description: 'Onboarding', amount: 6000, period_start: end, period_end: end }))
  t.strictSame(
    shown({ lines }, '').slice(head.length), ['Onboarding', '60.00 EUR', 'Onboarding', '60.00 EUR', ...sums],
    'no period is shown where there is none'
  )
})

t.test('every text of an invoice is escaped', async (t) => {
  const texts: string[] = []
  const hostile = (field: string) => {
    const text = `</style><img src=x onerror="${field}"> & 'it' &lt;`
    texts.push(text)
    return text
  }
  const party = (of: string) => ({
    name: hostile(`name of ${of}`),
    address: `${hostile(`street of ${of}`)}\n${hostile(`city of ${of}`)}`,
    tax_id: hostile(`tax id of ${of}`)
  })
  const page = renderInvoice({
    ...INVOICE,
    number: hostile('number'),
    currency: hostile('currency'),
    lines: [{ description: hostile('description'), amount: 1, period_start: null, period_end: null }],
    seller: party('seller'),
    buyer: party('buyer'),
    reference: hostile('reference'),
    note: `${hostile('note')}\n${hostile('more of the note')}`
  }, `${hostile('details')}\n${hostile('more details')}`)
  const shown = linesOf(page)
  for (const text of texts) t.ok(shown.includes(text), text)
  t.notMatch(page, /<img|onerror="|&lt;/)
  t.equal(page.match(/<\/style>/g)?.length, 1)
  t.match(page, /<meta name="author" content="[^"<]*name of seller[^"<]*">\n<title>[^<]*number[^<]*<\/title>/)
})

t.test('downloads of invoices have a limit, and those of one organization take nothing from another', async (t) => {
  const limited = await startIsolatedApp(t, { RATE_LIMIT_BILLING: '1' })
  const [greedy, modest] = await Promise.all([limited.organization(), limited.organization()])
  for (const caller of [greedy, modest]) await charge(caller, 100)
  const [many, one] = await Promise.all([greedy, modest].map(async (caller) => (await invoicesOf(caller))[0]!.id))
  t.equal((await download(limited, greedy, 'never')).statusCode, 404)
  const answers = []
  for (let n = 0; n < 4; n++) answers.push((await download(limited, greedy, many!)).statusCode)
  t.strictSame(answers, [200, 200, 200, 429])
  t.equal((await download(limited, modest, one!)).statusCode, 200)
  // Concurrent requests get the same result: the service refuses the excess requests only because of the limit.
  const [others, other] = await Promise.all([service.organization(), service.organization()])
  for (const caller of [others, other]) await charge(caller, 100)
  const [theirs, its] = await Promise.all([others, other].map(async (caller) => (await invoicesOf(caller))[0]!.id))
  const together = await Promise.all([
    ...Array.from({ length: 30 }, () => download(service, others, theirs!)), download(service, other, its!)
  ])
  t.strictSame([...new Set(together.map(({ statusCode }) => statusCode))], [200])
})

t.test('an invoice has the reference of its payment method, and the note, as they were at its creation', async (t) => {
  const own = await startIsolatedApp(t, { INVOICE_NOTE: 'VAT is due by|the recipient' })
  const caller = await own.organization()
  const shown = async () => {
    const { attributes } = (await bill(caller, 'GET', `invoices/${(await invoicesOf(caller))[0]!.id}`)).body.data
    return [attributes.reference, attributes.note]
  }
  const note = 'VAT is due by\nthe recipient'
  await charge(caller, 5)
  t.strictSame(await shown(), [null, note], 'without a payment method')
  const add = async (more: object) =>
    (await bill(caller, 'POST', 'payment-methods', { kind: 'manual', label: 'Wire', ...more })).body.data.id
  await add({ reference: 'PO 1' })
  const second = await add({ reference: 'PO 2' })
  const third = await add({})
  await charge(caller, 5)
  t.strictSame(await shown(), ['PO 1', note], 'that of the default one')
  for (const [payment_method_id, reference] of [[second, 'PO 2'], [third, null]]) {
    const body = { amount: 5, currency: 'EUR', description: 'Onboarding', payment_method_id }
    t.equal((await bill(caller, 'POST', 'charges', body)).body.data.attributes.payment_method_id, payment_method_id)
    t.strictSame(await shown(), [reference, note], 'that of the chosen one')
  }
  await own.sql("INSERT INTO coupons (code, percent_off) VALUES ('GIFT', 100)")
  await bill(caller, 'POST', 'coupons', { code: 'GIFT' })
  await subscribe(caller)
  t.strictSame(await shown(), ['PO 1', note], 'also where nothing is to pay')
})

t.test('without a named seller nothing with a price is invoiced, and nothing is changed', async (t) => {
  const own = await startIsolatedApp(t, { INVOICE_SELLER_NAME: '', RATE_LIMIT_BILLING: '100' })
  const warnings = () => own.logs.filter((line) => line.includes('INVOICE_SELLER_NAME is not set')).length
  const caller = await own.organization({ plan: 'free' })
  const books = async () => (await Promise.all(['invoices', 'charges', 'subscriptions', 'audit_events'].map((table) =>
    own.sql(`SELECT * FROM ${table} WHERE organization_id = '${caller.organization}'`)))).map(({ length }) => length)
  for (const answer of [await charge(caller, 5), await subscribe(caller)]) {
    t.strictSame([answer.status, answer.body.error], [503, 'invoicing_unavailable'])
  }
  t.strictSame(await books(), [0, 0, 0, 0])
  t.equal((await caller.call('GET', '/organization')).body.data.attributes.plan_name, 'free')
  await own.sql("INSERT INTO coupons (code, percent_off) VALUES ('GIFT', 100)")
  await bill(caller, 'POST', 'coupons', { code: 'GIFT' })
  t.equal((await subscribe(caller)).status, 201, 'what costs nothing needs no seller')
  await bill(caller, 'DELETE', 'coupons')
  const before = await books()
  const over = `UPDATE subscriptions SET anchor = now() - interval '1 month',
    period_start = now() - interval '1 month', period_end = now() WHERE organization_id = `
  await own.sql(`${over}'${caller.organization}'`)
  // The period of this organization ends later. When it is closed, the background worker has passed the organization
  // before.
  const other = await own.organization()
  await bill(other, 'POST', 'coupons', { code: 'GIFT' })
  await subscribe(other)
  for (const count of [2, 3]) {
    await own.sql(`${over}'${other.organization}'`)
    await background(own.app, async () => (await invoicesOf(other)).length === count)
  }
  t.strictSame(await books(), before, 'its period waits')
  t.equal((await bill(caller, 'GET', 'subscription')).status, 200, 'and its subscription goes on')
  t.equal(warnings(), 1, 'said once')
  t.notOk(own.logs.some((line) => line.includes('closing a billing period failed')))
  const app = await buildApp({
    ...own, config: { ...own.config, invoices: service.config.invoices }, logStream: { write () {} }
  })
  t.teardown(() => app.close())
  await background(app, async () => (await invoicesOf(caller)).length === 2)
  t.equal((await invoicesOf(caller))[0]!.attributes.total, 2900, 'it is invoiced when a seller is named')
})

t.test('a file says of refunds what was paid back, and nothing of what waits to be or failed', async (t) => {
  const caller = await service.organization()
  const { id, attributes: { invoice_id } } = (await charge(caller, 1000)).body.data
  await settle(service.database, 'invoice', 'paid', invoice_id)
  const paidBack = async () => {
    const shown = linesOf((await download(service, caller, invoice_id)).payload)
    return shown.includes('Paid back') ? shown[shown.indexOf('Paid back') + 1] : undefined
  }
  const refunds = []
  for (const amount of [300, 40]) {
    refunds.push((await bill(caller, 'POST', `charges/${id}/refund`, { amount })).body.data.id)
  }
  t.equal(await paidBack(), undefined, 'the money has not gone yet')
  await settle(service.database, 'refund', 'failed', refunds[0])
  t.equal(await paidBack(), undefined)
  await settle(service.database, 'refund', 'paid', refunds[1])
  t.equal(await paidBack(), '−0.40 EUR')
  t.equal((await invoicesOf(caller))[0]!.attributes.refunded, 40)
})

t.test('stored responses that are a day old are deleted, with or without another request', async (t) => {
  const caller = await service.organization()
  const other = await service.organization()
  for (const who of [caller, other]) t.equal((await charge(who, 5, { 'idempotency-key': 'old' })).status, 201)
  await service.sql("UPDATE idempotency_keys SET created_at = now() - interval '25 hours'")
  t.equal((await charge(caller, 5, { 'idempotency-key': 'new' })).status, 201)
  await background({ billing: service.app.removals }, async () => (await rows('idempotency_keys', other)).length === 0)
  await background({ billing: service.app.removals }, async () => (await rows('idempotency_keys', caller)).length === 1)
  t.equal((await charge(caller, 5, { 'idempotency-key': 'new' })).headers['idempotent-replayed'], 'true')
})

t.test('another plan is valid at once, with credit for the rest of the old one; history follows, down and up', async (t) => {
  const caller = await service.organization()
  const own = `/${caller.organization}`
  const level = await makeLevel(caller)
  const { version } = (await caller.call('POST', `${own}/secrets/store`, { ...level, plaintext: 'A=1' })).body.data
  await service.sql(
    `UPDATE secret_versions SET created_at = now() - interval '40 days' WHERE organization_id = '${caller.organization}'`
  )
  const fetched = async () => (await caller.call('GET', `${own}/secrets/versions/${version}`)).status
  t.equal(await fetched(), 200, 'self-hosted: for ever')
  await subscribe(caller, { plan: 'team', interval: 'month' })
  t.equal(await fetched(), 200, 'team: 90 days')
  await settle(service.database, 'invoice', 'paid', (await invoicesOf(caller))[0]!.id)
  // Half of the period is over.
  await service.sql(`UPDATE subscriptions SET period_start = now() - interval '15 days',
    period_end = now() + interval '15 days' WHERE organization_id = '${caller.organization}'`)
  const down = await bill(caller, 'PATCH', 'subscription', { plan: 'pro' })
  t.match(down.body.data.attributes, { plan: 'pro', amount: 2900 })
  t.equal(await fetched(), 403, 'pro: 30 days')
  const [second] = await invoicesOf(caller)
  t.match(
    second!.attributes, { status: 'paid', subtotal: 2900, credit: 2900, total: 0, charge_id: null },
    'paid by what was left'
  )
  const [{ amount: credit }] = await rows('credits', caller) as [{ amount: string }]
  t.ok(Number(credit) >= 2040 && Number(credit) <= 2050, `${credit} of 4950 is in credit beside 2900`)
  t.equal((await bill(caller, 'PATCH', 'subscription', { plan: 'team' })).status, 200)
  t.equal(await fetched(), 200, 'team again')
  const [third] = await invoicesOf(caller)
  const had = third!.attributes.credit
  t.ok(had > Number(credit) + 2890 && had <= Number(credit) + 2900, `${had}: the credit pays for it first`)
  t.equal(third!.attributes.subtotal - had, third!.attributes.total)
  t.match(await rows('credits', caller), [{ currency: 'EUR', amount: '0' }])
  const count = (await invoicesOf(caller)).length
  t.equal((await bill(caller, 'PATCH', 'subscription', { plan: 'team', interval: 'month' })).status, 200)
  t.equal((await invoicesOf(caller)).length, count, 'the same again costs nothing')
  await refusesAll(t, caller, (body) => bill(caller, 'PATCH', 'subscription', body), [
    [{ plan: 'self-hosted' }, 'plan_not_offered'], [{ plan: '' }, 'validation_failed', 'plan'],
    [{ cancel_at_period_end: true }, 'validation_failed', 'cancel_at_period_end']
  ])
  const key = { 'idempotency-key': 'change' }
  const once = await bill(caller, 'PATCH', 'subscription', { interval: 'year' }, key)
  await bill(caller, 'PATCH', 'subscription', { interval: 'month' })
  const repeated = await bill(caller, 'PATCH', 'subscription', { interval: 'year' }, key)
  t.strictSame([repeated.headers['idempotent-replayed'], repeated.body], ['true', once.body])
  t.equal((await bill(caller, 'GET', 'subscription')).body.data.attributes.interval, 'month', 'changed once')
})

t.test('a plan that the usage does not fit is refused, and says by what', async (t) => {
  const caller = await service.organization()
  const names = Array.from({ length: 51 }, (_, i) => `('${String(i).padStart(26, '0')}')`).join()
  await service.sql(`INSERT INTO projects (id, organization_id, name, slug, secret_format, encryption_type,
    history_policy, key_version)
    SELECT id, '${caller.organization}', id, id, 'env', 'server', 'keep', 1 FROM (VALUES ${names}) AS made (id)`)
  const refused = await subscribe(caller)
  t.strictSame([refused.status, refused.body.error], [422, 'plan_limit_reached'])
  t.strictSame(refused.body.details, { limit: 50, used: 51, plan: 'pro' })
  t.strictSame([await planOf(caller), (await rows('invoices', caller)).length], ['self-hosted', 0])
  t.equal((await subscribe(caller, { plan: 'team' })).status, 201)
  t.equal((await bill(caller, 'PATCH', 'subscription', { plan: 'pro' })).body.error, 'plan_limit_reached')
  t.equal(await planOf(caller), 'team')
})

t.test('a cancelled subscription ends with its period and can be resumed until then; any other is renewed', async (t) => {
  const caller = await service.organization({ plan: 'free' })
  await subscribe(caller)
  const over = () => service.sql(`UPDATE subscriptions SET anchor = (SELECT anchor - interval '1 month'),
    period_start = (SELECT period_start - interval '1 month'), period_end = now()
    WHERE organization_id = '${caller.organization}'`)
  for (const n of [1, 2]) {
    t.match((await bill(caller, 'DELETE', 'subscription')).body.data.attributes, { status: 'ending' }, `cancel ${n}`)
  }
  for (const n of [1, 2]) {
    const resumed = await bill(caller, 'POST', 'subscription/resume', {})
    t.match(resumed.body.data.attributes, { status: 'active', cancel_at_period_end: false }, `resume ${n}`)
  }
  await over()
  await background(service.app, async () => (await invoicesOf(caller)).length === 2)
  const { attributes } = (await bill(caller, 'GET', 'subscription')).body.data
  t.ok(Date.parse(attributes.current_period_end) > Date.now(), 'the next period has begun')
  t.match((await invoicesOf(caller))[0]!.attributes, { total: 2900, number: /-000002$/ })
  t.equal(await planOf(caller), 'pro')
  await bill(caller, 'DELETE', 'subscription')
  t.equal(await planOf(caller), 'pro', 'what is paid for is had')
  await over()
  await background(service.app, async () => (await bill(caller, 'GET', 'subscription')).status === 404)
  t.equal(await planOf(caller), 'self-hosted', 'DEFAULT_PLAN')
  t.equal((await invoicesOf(caller)).length, 2)
  t.strictSame(await eventsOf(service, caller), [
    'subscription.create', 'subscription.cancel', 'subscription.cancel', 'subscription.resume', 'subscription.resume',
    'subscription.renew', 'subscription.cancel', 'subscription.end'
  ])
})

t.test('amounts are whole, positive and bounded, in a currency that there is', async (t) => {
  const caller = await service.organization()
  const good = { amount: 12_000, currency: 'EUR', description: 'Onboarding' }
  await refusesAll(t, caller, (body) => bill(caller, 'POST', 'charges', body), [
    ...[0, -1, 1.5, '12000', null, 1e15, 1_000_000_000_000].map((amount): [object, string, string] =>
      [{ ...good, amount }, 'validation_failed', 'amount']),
    ...['EURO', 'eur', 'XXX', '', 978].map((currency): [object, string, string] =>
      [{ ...good, currency }, 'validation_failed', 'currency']),
    [{ ...good, description: ' ' }, 'validation_failed', 'description'],
    [{ ...good, description: 'x'.repeat(256) }, 'validation_failed', 'description'],
    [{ ...good, description: '4111111111111111' }, 'card_number_refused', 'description'],
    [{ ...good, payment_method_id: '01JQZ7D3K5M7P9R1T3V5X7Z9B3' }, 'validation_failed', 'payment_method_id'],
    [{ ...good, card: '4111' }, 'validation_failed', 'card']
  ])
  const { status, body } = await bill(caller, 'POST', 'charges', good)
  t.equal(status, 201)
  t.match(body.data.attributes, { amount: 12_000, status: 'pending', refunded: 0 })
})

t.test('one of 50 concurrent repeats charges; for 24 hours only its caller gets the first response again', async (t) => {
  const caller = await service.organization()
  const key = { 'idempotency-key': 'order-17' }
  const answers = await Promise.all(Array.from({ length: 50 }, () => charge(caller, 500, key)))
  const made = answers.filter(({ status }) => status === 201)
  t.ok(made.length >= 1)
  t.same(answers.filter(({ status }) => status !== 201 && status !== 409), [])
  t.equal(new Set(made.map(({ body }) => body.data.id)).size, 1)
  t.equal(made.filter(({ headers }) => headers['idempotent-replayed'] === undefined).length, 1)
  t.same([(await rows('charges', caller)).length, (await rows('invoices', caller)).length], [1, 1])
  const replay = await charge(caller, 500, key)
  t.strictSame([replay.status, replay.headers['idempotent-replayed']], [201, 'true'])
  t.strictSame(replay.body, made[0]!.body)
  t.equal((await rows('audit_events', caller)).length, 1, 'one event')

  t.equal((await charge(caller, 501, key)).body.error, 'idempotency_key_reused', 'another body')
  t.equal((await bill(caller, 'POST', 'payment-methods', { kind: 'manual', label: 'x' }, key)).body.error,
    'idempotency_key_reused', 'another path')
  for (const bad of ['', ' ', 'x'.repeat(256), 'a b', 'é']) {
    const answer = await charge(caller, 500, { 'idempotency-key': bad })
    t.strictSame([answer.status, answer.body.error], [422, 'validation_failed'], JSON.stringify(bad))
  }
  const other = await service.token(caller.organization, ['*'])
  t.equal((await charge(other, 501, key)).status, 201, 'the keys of another token are its own')
  t.equal((await charge(await service.organization(), 502, key)).status, 201, 'and those of another organization')
  await service.sql("UPDATE idempotency_keys SET created_at = now() - interval '25 hours'")
  t.equal((await charge(caller, 503, key)).status, 201, 'a day later it is a new one')
  const kept = JSON.stringify(await rows('idempotency_keys', caller))
  t.notMatch(kept, 'order-17', 'a key is stored nowhere')
  const refused = { 'idempotency-key': 'refused' }
  t.equal((await charge(caller, 0, refused)).status, 422)
  t.equal((await charge(caller, 7, refused)).status, 201, 'what was refused had no effect, and is not kept')
})

t.test('a refund, a subscription and a coupon are made once by who repeats them, at once or later', async (t) => {
  await service.sql("INSERT INTO coupons (code, percent_off) VALUES ('REPEATED', 10)")
  const caller = await service.organization()
  const { id, attributes: { invoice_id } } = (await charge(caller, 1000)).body.data
  await settle(service.database, 'invoice', 'paid', invoice_id)
  for (const [rest, body, other, table] of [
    ['subscription', { plan: 'pro' }, { plan: 'team' }, 'subscriptions'],
    [`charges/${id}/refund`, { amount: 100 }, { amount: 101 }, 'refunds'],
    ['coupons', { code: 'REPEATED' }, { code: 'OTHER' }, 'coupon_redemptions']
  ] as const) {
    const key = { 'idempotency-key': `key of ${table}`.replaceAll(' ', '-') }
    const answers = await Promise.all(Array.from({ length: 5 }, () => bill(caller, 'POST', rest, body, key)))
    t.same(answers.filter(({ status }) => status !== 201 && status !== 409), [], rest)
    const [first] = answers.filter(({ headers, status }) => status === 201 && !headers['idempotent-replayed'])
    const replay = await bill(caller, 'POST', rest, body, key)
    t.strictSame([replay.status, replay.headers['idempotent-replayed']], [201, 'true'], rest)
    t.strictSame(replay.body, first!.body, rest)
    const reused = await bill(caller, 'POST', rest, other, key)
    t.strictSame([reused.status, reused.body.error], [422, 'idempotency_key_reused'], rest)
    t.equal((await rows(table, caller)).length, 1, `${rest}: once`)
  }
  t.match(await service.sql("SELECT redemptions FROM coupons WHERE code = 'REPEATED'"), [{ redemptions: 1 }])
  t.equal((await eventsOf(service, caller)).length, 5, 'each has one event')
})

t.test('no more goes back than came in, in whatever parts and however many ask at once', async (t) => {
  const caller = await service.organization()
  const { id, attributes: { invoice_id } } = (await charge(caller, 1000)).body.data
  const refund = (body: object = {}, of = id) => bill(caller, 'POST', `charges/${of}/refund`, body)
  t.equal((await refund({ amount: 1 })).body.error, 'charge_not_settled', 'what did not come in')
  await settle(service.database, 'invoice', 'paid', invoice_id)
  // The service sends a charge to the provider after its response.
  const unsent = `SELECT FROM charges WHERE id = '${id}' AND submitted_at IS NULL`
  await until(async () => (await service.sql(unsent)).length === 0)
  await refusesAll(t, caller, refund, [
    [{ amount: 1001 }, 'refund_exceeds_charge'], [{ amount: 0 }, 'validation_failed', 'amount'],
    [{ amount: -5 }, 'validation_failed', 'amount'], [{ amount: 0.5 }, 'validation_failed', 'amount'],
    [{ reason: '' }, 'validation_failed', 'reason']
  ])
  t.strictSame((await refund({ amount: 1001 })).body.details, { left: 1000 })
  t.equal((await refund({}, 'never')).status, 404)
  t.equal((await bill(await service.organization(), 'POST', `charges/${id}/refund`, {})).status, 404)
  const answers = await Promise.all(Array.from({ length: 12 }, () => refund({ amount: 300, reason: 'Half a day' })))
  t.equal(answers.filter(({ status }) => status === 201).length, 3)
  t.strictSame(new Set(answers.filter(({ status }) => status !== 201).map(({ body }) => body.error)),
    new Set(['refund_exceeds_charge']))
  const rest = await refund()
  t.match(rest.body.data.attributes, { amount: 100, status: 'pending', currency: 'EUR', charge_id: id })
  t.strictSame((await refund()).body.details, { left: 0 })
  t.equal((await invoicesOf(caller))[0]!.attributes.refunded, 1000)
  await settle(service.database, 'refund', 'failed', rest.body.data.id)
  t.equal((await invoicesOf(caller))[0]!.attributes.refunded, 900, 'what did not go out is left again')
  t.equal((await refund({ amount: 100 })).status, 201)
  await t.rejects(settle(service.database, 'refund', 'paid', rest.body.data.id), { message: /already settled/ })
})

t.test('coupons: unknown, over and used up are told apart, one for an organization, and it is taken off', async (t) => {
  await service.sql(`INSERT INTO coupons (code, percent_off, amount_off, currency, valid_until, max_redemptions) VALUES
    ('TENTH', 10, NULL, NULL, NULL, NULL), ('OVER', 10, NULL, NULL, now(), NULL),
    ('ONCE', NULL, 1000, 'EUR', NULL, 1), ('FREE', 100, NULL, NULL, NULL, NULL)`)
  const caller = await service.organization()
  const redeem = (code: unknown, who = caller) => bill(who, 'POST', 'coupons', { code } as object)
  await refusesAll(t, caller, ({ code }: { code?: unknown }) => redeem(code), [
    [{ code: 'NEVER' }, 'coupon_unknown'], [{ code: "TENTH'" }, 'coupon_unknown'], [{ code: 'OVER' }, 'coupon_expired'],
    [{ code: '' }, 'validation_failed', 'code'], [{ code: 10 }, 'validation_failed', 'code']
  ])
  t.equal((await bill(caller, 'DELETE', 'coupons')).status, 404)
  t.match((await redeem('tenth')).body.data, { type: 'coupons', id: 'TENTH', attributes: { percent_off: 10 } })
  t.equal((await redeem('FREE')).body.error, 'coupon_taken')
  await subscribe(caller)
  t.match((await invoicesOf(caller))[0]!.attributes, { subtotal: 2900, discount: 290, total: 2610 })
  t.equal((await bill(caller, 'DELETE', 'coupons')).status, 204)
  t.equal((await redeem('TENTH')).body.error, 'coupon_redeemed', 'each once, also when it was taken away')
  const one = await service.organization()
  const several = await Promise.all(Array.from({ length: 6 }, () => redeem('tenth', one)))
  t.equal(several.filter(({ status }) => status === 201).length, 1)
  t.match(await service.sql("SELECT redemptions FROM coupons WHERE code = 'TENTH'"), [{ redemptions: 2 }])
  const others = await Promise.all(Array.from({ length: 4 }, () => service.organization()))
  const answers = await Promise.all(others.map((other) => redeem('ONCE', other)))
  t.equal(answers.filter(({ status }) => status === 201).length, 1, 'of those who want the last one, one gets it')
  t.strictSame(new Set(answers.flatMap(({ body }) => body.error ?? [])), new Set(['coupon_used_up']))
  const winner = others[answers.findIndex(({ status }) => status === 201)]!
  await subscribe(winner, { plan: 'pro', currency: 'USD' })
  t.match((await invoicesOf(winner))[0]!.attributes, { discount: 0, total: 2900 }, 'euros are nothing off dollars')
  const lucky = await service.organization()
  await redeem('FREE', lucky)
  await subscribe(lucky)
  t.match((await invoicesOf(lucky))[0]!.attributes, { status: 'paid', total: 0, charge_id: null })
})

t.test('payment methods: no number of a card, one default, which a subscription keeps', async (t) => {
  const caller = await service.organization()
  const add = (body: object) => bill(caller, 'POST', 'payment-methods', { kind: 'manual', label: 'Wire', ...body })
  await refusesAll(t, caller, add, [
    [{ label: '4111 1111 1111 1111' }, 'card_number_refused', 'label'],
    [{ reference: 'Visa 4242424242424242' }, 'card_number_refused', 'reference'],
    [{ kind: 'card' }, 'validation_failed', 'kind'], [{ number: '4242' }, 'validation_failed', 'number'],
    [{ label: '' }, 'validation_failed', 'label'], [{ reference: 'x'.repeat(256) }, 'validation_failed', 'reference']
  ])
  const first = (await add({})).body.data
  const second = (await caller.call(
    'POST', path(caller, 'payment-methods'), { kind: 'manual', label: 'Second', reference: 'DE89370400440532013000' }
  )).body.data
  t.strictSame([first, second].map(({ attributes }) => attributes.is_default), [true, false])
  t.equal((await bill(caller, 'PATCH', `payment-methods/${second.id}/default`, {})).status, 200)
  const listed = (await bill(caller, 'GET', 'payment-methods')).body.data
  t.strictSame(listed.map(({ id, attributes: { is_default } }: any) => [id, is_default]), [
    [second.id, true], [first.id, false]
  ])
  await subscribe(caller)
  t.equal((await bill(caller, 'DELETE', `payment-methods/${second.id}`)).body.error, 'payment_method_in_use')
  t.equal((await bill(caller, 'DELETE', `payment-methods/${first.id}`)).status, 204)
  t.equal((await bill(caller, 'DELETE', `payment-methods/${first.id}`)).status, 404)
  t.equal((await bill(caller, 'PATCH', `payment-methods/${first.id}/default`, {})).status, 404)
  t.equal((await bill(caller, 'GET', 'payment-methods')).body.meta.total, 1)
})

t.test('each action has its own limit of ten a minute on all paths; replays and refusals do not count', async (t) => {
  const limited = await startIsolatedApp(t, { RATE_LIMIT_BILLING: '2' })
  const hasty = await limited.organization()
  const several = await Promise.all(Array.from({ length: 20 }, () => charge(hasty, 5, { 'idempotency-key': 'at-once' })))
  t.same(several.filter(({ status }) => status !== 201 && status !== 409), [])
  t.equal((await charge(hasty, 6)).status, 201, 'what came while the first was under way counts for nothing')
  t.equal((await charge(hasty, 7)).status, 429)
  const caller = await limited.organization()
  const published = Object.entries(limited.app.swagger().paths ?? {}).flatMap(([path, item]) =>
    Object.entries(item as Record<string, Record<string, unknown>>)
      .filter(([, operation]) =>
        (operation.security as Record<string, string[]>[] | undefined)?.[0]?.bearerToken?.[0] === 'billing:write')
      .map(([method, operation]) => [`${method} ${path}`, operation['x-limit-of-effect']]))
  t.ok(published.length >= 14)
  t.same(published.filter(([, group]) => group !== 'billing'), [], 'every operation that writes is limited')
  const key = { 'idempotency-key': 'one' }
  for (const status of [201, 201, 201, 201]) t.equal((await charge(caller, 5, key)).status, status)
  t.equal((await charge(caller, 0)).status, 422)
  t.equal((await charge(caller, 5)).status, 201)
  const over = await charge(caller, 5)
  t.equal(over.status, 429)
  t.equal(over.headers['x-ratelimit-limit'], '2')
  t.equal((await charge(caller, 5, key)).status, 201, 'a replay changes nothing')
  const add = (rest: string) => caller.call('POST', path(caller, rest), { kind: 'manual', label: 'Wire' })
  t.equal((await add('payment-methods')).status, 201, 'another action')
  t.equal((await add('billing/payment-methods')).status, 201)
  t.equal((await add('payment-methods')).status, 429, 'both paths are one action')
  t.equal((await charge(await limited.organization(), 5)).status, 201, 'another organization')
})

t.test('an order is sent after the commit until it is answered: a crash between loses and doubles nothing', async (t) => {
  const { provider, ledger, asked, state } = processor()
  const start = async () => {
    const { database, keyring, config } = service
    const app = await buildApp({
      config, database, keyring, provider, patienceOfProvider: 100, logStream: { write () {} }
    })
    t.teardown(() => app.close())
    return app
  }
  const first = await start()
  const caller = await service.organization()
  const ask = async (app: typeof first, rest: string, body: object) => {
    const response = await app.inject({
      method: 'POST',
      url: `/api/v1${path(caller, `billing/${rest}`)}`,
      headers: { authorization: `Bearer ${caller.token}` },
      payload: body
    })
    if (response.statusCode !== 201) throw new Error(response.payload)
    return response.json().data
  }
  const status = async () => (await rows('charges', caller)).map((row) => row.status)
  // Stops this worker, so that only the worker of the other service with its other provider takes the charge.
  await service.app.billing.stop()
  state.mode = 'down'
  const { id, attributes } = await ask(
    first, 'charges', { amount: 900, currency: 'EUR', description: 'Onboarding' }
  )
  await background(first, async () => asked.length >= 2)
  t.strictSame(await status(), ['pending'])
  state.mode = 'silent'
  await background(first, async () => ledger.has(id))
  await first.close()
  t.strictSame(await status(), ['pending'], 'the outcome was lost with the process')
  state.mode = 'up'
  const second = await start()
  await background(second, async () => (await status())[0] === 'succeeded')
  t.equal(ledger.size, 1, 'it was done once')
  t.match(await rows('charges', caller), [{ provider: 'processor', provider_reference: `ch_${id}` }])
  t.match((await bill(caller, 'GET', `invoices/${attributes.invoice_id}`)).body.data.attributes, { status: 'paid' })
  const refund = await ask(second, `charges/${id}/refund`, { amount: 400 })
  await background(second, async () => (await rows('refunds', caller))[0]!.status === 'succeeded')
  t.match(await rows('refunds', caller), [{ provider_reference: `re_${refund.id}` }])
  state.mode = 'declines'
  const failing = await ask(second, `charges/${id}/refund`, { amount: 500 })
  await background(second, async () =>
    (await rows('refunds', caller)).find((row) => row.id === failing.id)!.status === 'failed')
  t.equal((await invoicesOf(caller))[0]!.attributes.refunded, 400, 'what did not go out is left')
  const declined = await ask(second, 'charges', { amount: 100, currency: 'EUR', description: 'Again' })
  await background(second, async () => (await status()).includes('failed'))
  t.match((await bill(caller, 'GET', `invoices/${declined.attributes.invoice_id}`)).body.data.attributes, {
    status: 'open'
  })
  t.strictSame(await eventsOf(service, caller), [
    'charge.create', 'invoice.pay', 'refund.create', 'refund.pay', 'refund.create', 'refund.fail', 'charge.create',
    'charge.fail'
  ])
})

t.test('calls are counted without a write for each, and not lost with an orderly end', async (t) => {
  const own = await startIsolatedApp(t)
  const caller = await own.organization({ plan: 'team' })
  await makeLevel(caller)
  const usage = async (who = caller) => (await who.call('GET', path(who, 'usage'))).body.data
  t.equal((await usage()).attributes.api_calls.used, 0)
  await own.app.calls.record()
  const { id, attributes } = await usage()
  t.match(id, /^\d{4}-\d\d$/)
  t.match(attributes, {
    plan: 'team',
    api_calls: { used: 4, limit_per_minute: null },
    projects: { used: 1, limit: null },
    members: { used: 0, limit: 100 }
  })
  t.equal((await own.inject({ method: 'GET', url: '/api/v1/organization' })).status, 401)
  t.equal((await usage()).attributes.api_calls.used, 4, 'what is not recorded yet is not shown by any process')
  await own.app.calls.record()
  const recorded = () => own.sql(`SELECT calls::int AS calls FROM api_usage WHERE organization_id = '${caller.organization}'`)
  t.same(await recorded(), [{ calls: 6 }], 'an unauthenticated request is not counted')
  t.equal((await usage()).attributes.api_calls.used, 6)
  await Promise.all(Array.from({ length: 20 }, () => caller.call('GET', '/organization')))
  await own.app.calls.stop()
  t.same(await recorded(), [{ calls: 27 }])
  const other = await own.organization()
  t.equal((await usage(other)).attributes.api_calls.used, 0)
})

t.test('invoices are numbered without a gap however many are made at once, and outlive their organization', async (t) => {
  const caller = await service.organization()
  const answers = await Promise.all([
    ...Array.from({ length: 12 }, (_, i) => charge(caller, i % 3 === 0 ? 0 : 100 + i)),
    subscribe(caller)
  ])
  const made = answers.filter(({ status }) => status === 201).length
  t.same(answers.filter(({ status }) => status !== 201 && status !== 422).map(({ text }) => text), [])
  t.equal(made, 9)
  const numbers = (await service.sql(
    `SELECT number FROM invoices WHERE organization_id = '${caller.organization}' ORDER BY number`
  )).map(({ number }) => number)
  t.strictSame(numbers, Array.from({ length: 9 }, (_, i) => i + 1))
  t.equal((await caller.call('DELETE', `/organizations/${caller.organization}`, { confirmed: true })).status, 204)
  const exported = []
  for await (const line of exportInvoices(service.database)) exported.push(JSON.parse(line))
  t.equal(exported.filter(({ organization_id }) => organization_id === caller.organization).length, 9)
  const [{ id }, { id: other }] = await rows('invoices', caller) as [{ id: string }, { id: string }]
  await settle(service.database, 'invoice', 'paid', id)
  await settle(service.database, 'invoice', 'void', other)
  t.match(await service.sql(`SELECT status FROM invoices WHERE id IN ('${id}', '${other}') ORDER BY status`), [
    { status: 'paid' }, { status: 'void' }
  ])
  t.strictSame((await eventsOf(service, caller)).slice(-2), ['invoice.pay', 'invoice.void'])
  t.same(await rows('subscriptions', caller), [])

  const [{ id: paid, amount }] = (await rows('charges', caller)).filter(({ invoice_id }) => invoice_id === id) as
    [{ id: string, amount: string }]
  const first = await refundCharge(service.database, paid, 1)
  await settle(service.database, 'refund', 'paid', first)
  const rest = await refundCharge(service.database, paid, undefined)
  await t.rejects(refundCharge(service.database, paid, 1), { message: /cannot exceed/ }, 'nothing is left')
  await t.rejects(refundCharge(service.database, rest, 1), { message: /There is no charge/ })
  const voided = (await rows('charges', caller)).find(({ invoice_id }) => invoice_id === other)!
  await t.rejects(refundCharge(service.database, voided.id as string, 1), { message: /not settled, so it cannot be refunded/ })
  const books = []
  for await (const line of exportInvoices(service.database)) books.push(JSON.parse(line))
  const { refunds } = books.find(({ charge_id }) => charge_id === paid)
  t.match(refunds, [
    { id: first, amount: 1, status: 'succeeded', provider_status: null, settled_at: /^\d{4}-.*Z$/ },
    { id: rest, amount: Number(amount) - 1, status: 'pending', provider_status: null, settled_at: null }
  ])
  t.strictSame(books.find(({ charge_id }) => charge_id === voided.id).refunds, [])
  t.strictSame((await eventsOf(service, caller)).slice(-3), ['refund.create', 'refund.pay', 'refund.create'])
})

t.test('the operator makes coupons, sets prices, and notes down what came and went', async (t) => {
  const env = { ...await emptyPlace(t), MASTER_KEY: generateMasterKey().text }
  const ok = async (...args: string[]) => {
    const { code, stdout, stderr } = await command(args, env)
    t.strictSame([code, stderr], [0, ''], args.join(' '))
    return stdout
  }
  const refused = async (status: number, line: RegExp, ...args: string[]) => {
    const { code, stdout, stderr } = await command(args, env)
    t.strictSame([code, stdout], [status, ''], args.join(' '))
    t.match(stderr, line)
  }
  await refused(2, /--percent must be a whole number from 1 to 100/, 'coupon', 'add', '--code', 'A', '--percent', '101')
  await refused(2, /needs --percent, or --amount/, 'coupon', 'add', '--code', 'A')
  await refused(2, /--currency must be an ISO 4217 code/, 'coupon', 'add', '--code', 'A', '--amount', '5')
  await refused(2, /--code has/, 'coupon', 'add', '--code', 'A B', '--percent', '5')
  const initialized = await command(['init', '--organization', 'Nimbus', '--email', 'rosa@nimbus.example', '--json'], env)
  t.equal(initialized.code, 0, initialized.stderr)
  t.equal(await ok('coupon', 'add', '--code', 'tenth', '--percent', '10', '--redemptions', '3'), 'Added.\n')
  await refused(1, /The coupon TENTH already exists/, 'coupon', 'add', '--code', 'TENTH', '--percent', '5')
  await ok('coupon', 'add', '--code', 'five', '--amount', '500', '--currency', 'eur', '--valid-until', '2036-01-01T00:00:00Z')
  await refused(
    1, /--valid-until is in the past/, 'coupon', 'add', '--code', 'six', '--percent', '5', '--valid-until', '0050-01-01T00:00:00Z'
  )
  t.equal(await ok('coupon', 'list'), 'FIVE\t5.00 EUR\t0/any\t2036-01-01T00:00:00.000Z\nTENTH\t10 %\t0/3\tno end\n')
  await ok('coupon', 'end', '--code', 'TENTH')
  await refused(1, /There is no coupon NEVER/, 'coupon', 'end', '--code', 'never')
  await ok('plan', 'price', '--plan', 'free', '--interval', 'month', '--currency', 'JPY', '--amount', '300')
  await ok('plan', 'price', '--plan', 'free', '--interval', 'month', '--currency', 'JPY', '--amount', '0')
  await refused(
    1, /There is no such price/, 'plan', 'price', '--plan', 'free', '--interval', 'month', '--currency', 'JPY', '--amount', '0'
  )
  await refused(
    1, /There is no plan gold/, 'plan', 'price', '--plan', 'gold', '--interval', 'year', '--currency', 'EUR', '--amount', '1'
  )
  t.equal(await ok('invoice', 'export'), '')
  t.equal(await ok('refund', 'list'), '')
  await refused(1, /There is no charge NEVER/, 'refund', 'add', '--charge', 'never')
  await refused(2, /needs --charge ID/, 'refund', 'add', '--amount', '5')
  await refused(2, /--amount must be a whole number/, 'refund', 'add', '--charge', 'A', '--amount', '0')
  for (const of of ['invoice', 'refund']) {
    await refused(1, new RegExp(`There is no ${of} NEVER`), of, 'paid', '--id', 'never')
    await refused(2, /needs --id ID/, of, 'paid')
  }

  const caller = await service.organization()
  const { id, attributes: { invoice_id } } = (await charge(caller, 1000)).body.data
  await settle(service.database, 'invoice', 'paid', invoice_id)
  await t.rejects(settle(service.database, 'invoice', 'void', invoice_id), { message: /already settled/ })
  const refund = (await bill(caller, 'POST', `charges/${id}/refund`, { amount: 250 })).body.data
  const waitingFor = async ({ organization }: Caller) => {
    const lines = []
    for await (const line of describeRefunds(service.database)) if (line.includes(organization)) lines.push(line)
    return lines
  }
  const waiting = await waitingFor(caller)
  t.match(waiting, [new RegExp(`^${refund.id}\t${caller.organization}\t2\\.50 EUR\t${id}\t.*\tmanual\tpending$`)])
  await settle(service.database, 'refund', 'paid', refund.id)
  const { id: second, attributes } = (await charge(caller, 70)).body.data
  await settle(service.database, 'invoice', 'void', attributes.invoice_id)
  t.equal((await bill(caller, 'POST', `charges/${second}/refund`, {})).body.error, 'charge_not_settled')
  t.match((await invoicesOf(caller)).map(({ attributes: { status, refunded } }) => [status, refunded]), [
    ['void', 0], ['paid', 250]
  ])
  // More refunds than a page contains.
  await service.sql(`INSERT INTO refunds (organization_id, id, charge_id, provider, amount)
    SELECT '${caller.organization}', 'R' || lpad(n::text, 25, '0'), '${id}', 'manual', 1 FROM generate_series(1, 1001) n`)
  t.equal(new Set(await waitingFor(caller)).size, 1001, 'each refund that waits is listed')
  await service.sql(`DELETE FROM refunds WHERE organization_id = '${caller.organization}'`)
})
