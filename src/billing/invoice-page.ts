import type { InvoiceLine, Party } from '../../schemas/billing.ts'
import { sha256 } from '../crypto/primitives.ts'
import type { Invoice } from '../repositories/billing/invoices.ts'
import { formatMoney } from '../rules/billing.ts'
import { Html, html } from '../rules/formats/html.ts'

/** The data that an invoice page shows. `paid_back` is the sum of the completed refunds. */
export type PrintedInvoice = { number: string, paid_back: number } & Pick<Invoice,
  'status' | 'currency' | 'lines' | 'subtotal' | 'discount' | 'credit' | 'total' | 'seller' | 'buyer' | 'issued_at' |
  'due_at' | 'paid_at' | 'reference' | 'note'>

// The style sheet uses system fonts. The browser prints the title of the page on each sheet of paper. The title
// contains the invoice number.
const STYLE = `
@page {
  size: A4;
  margin: 20mm;
  @bottom-right { content: "page " counter(page) " of " counter(pages); font: 8pt system-ui, sans-serif; }
}
:root { color-scheme: light; }
body { max-width: 170mm; margin: 0 auto; padding: 1rem; font: 9.5pt/1.45 system-ui, sans-serif; }
header { display: flex; justify-content: space-between; align-items: baseline; }
h1 { margin: 0 0 1rem; font-size: 24pt; line-height: 1.2; }
h2 { margin: 0; font-size: inherit; font-weight: normal; break-after: avoid; }
p { margin: 0; min-height: 1.45em; }
[dir], bdi { overflow-wrap: anywhere; }
.parties { display: grid; grid-template-columns: 1fr 1fr 62mm; gap: 6mm; margin-bottom: 9mm; }
.name { font-weight: bold; }
table { width: 100%; border-collapse: collapse; }
tr { break-inside: avoid; }
th, td { padding: 0; text-align: start; vertical-align: top; }
th { font-weight: normal; white-space: nowrap; }
.facts { align-self: start; }
.facts td, .lines .amount { text-align: right; }
.facts td, .lines th + *, .lines td + * { padding-left: 4mm; }
.lines thead th { padding-bottom: 1.5mm; border-bottom: 1px solid; }
.lines td, .lines tbody th { padding-top: 1.5mm; }
.number, .period, .amount { white-space: nowrap; }
.sums { border-top: 1.5mm solid transparent; break-inside: avoid; }
.state, .total > * { font-size: 12pt; font-weight: bold; }
.note, .payment { margin-top: 7mm; }
@media screen and (max-width: 40rem) { .parties { grid-template-columns: 1fr; } .period { white-space: normal; } }
@media print { body { padding: 0; } }
`

/** The content security policy of the page, which allows only the page's own style sheet. */
export const INVOICE_POLICY =
  `default-src 'none'; style-src 'sha256-${sha256(STYLE).toString('base64')}'; base-uri 'none'; form-action 'none'`

/** Renders an invoice as a self-contained HTML page for A4 paper. The same invoice always yields the same HTML. */
export function renderInvoice (invoice: PrintedInvoice, paymentDetails: string): string {
  const { number, currency, seller, buyer, reference, note } = invoice
  const money = (amount: number) => formatMoney(amount, currency)
  const state = stateOf(invoice)
  // Repeats the content security policy in the page, because a saved file has no HTTP headers.
  return html`<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="content-security-policy" content="${INVOICE_POLICY}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="author" content="${seller.name}">
<title>Invoice ${number}</title>
<style>${new Html(STYLE)}</style>
</head>
<body>
<header>
<h1>Invoice</h1>
${state === '' ? '' : html`<p class="state">${state}</p>`}
</header>
<main>
<div class="parties">
${partyBlock('From', seller)}
${partyBlock('To', buyer)}
<table class="facts">
<tr><th scope="row">Number</th><td class="number">${number}</td></tr>
<tr><th scope="row">Date</th><td>${day(invoice.issued_at)}</td></tr>
<tr><th scope="row">Due</th><td>${day(invoice.due_at)}</td></tr>
<tr><th scope="row">Currency</th><td>${currency}</td></tr>
${reference === null ? '' : html`<tr><th scope="row">Reference</th><td dir="auto">${reference}</td></tr>`}
</table>
</div>
<table class="lines">
<thead>
<tr><th scope="col">Description</th><th scope="col">Period</th><th scope="col" class="amount">Amount</th></tr>
</thead>
<tbody>
${invoice.lines.map((line) => lineRow(line, currency))}
</tbody>
<tbody class="sums">
${sumRow('Subtotal', money(invoice.subtotal))}
${invoice.discount === 0 ? '' : sumRow('Coupon', money(-invoice.discount))}
${invoice.credit === 0 ? '' : sumRow('Credit', money(-invoice.credit))}
${sumRow('Total', money(invoice.total), 'total')}
${invoice.paid_back === 0 ? '' : sumRow('Paid back', money(-invoice.paid_back))}
</tbody>
</table>
${note === '' ? '' : html`<section class="note">${paragraphs(note)}</section>`}
${invoice.status !== 'open' || paymentDetails === '' ? '' : paymentBlock(invoice, paymentDetails)}
</main>
</body>
</html>
`.text
}

const day = (moment: Date | string) => new Date(moment).toISOString().slice(0, 10)

// Makes each line a paragraph, so that each line has its own text direction.
const paragraphs = (text: string) => text.split('\n').map((line) => html`<p dir="auto">${line}</p>`)

function partyBlock (label: string, { name, address, tax_id }: Party): Html {
  return html`<section>
<h2>${label}</h2>
<p class="name" dir="auto">${name}</p>
${address === '' ? '' : paragraphs(address)}
${tax_id === '' ? '' : html`<p>Tax id <bdi>${tax_id}</bdi></p>`}
</section>`
}

function paymentBlock ({ number, currency, total, due_at }: PrintedInvoice, details: string): Html {
  return html`<section class="payment">
<p>Please pay ${formatMoney(total, currency)} by ${day(due_at)}, with the number ${number}:</p>
${paragraphs(details)}
</section>`
}

const lineRow = (line: InvoiceLine, currency: string) => html`<tr>
<td dir="auto">${line.description}</td><td class="period">${periodOf(line)}</td>
<td class="amount">${formatMoney(line.amount, currency)}</td>
</tr>`

const sumRow = (label: string, amount: string, name = 'sum') =>
  html`<tr class="${name}"><td></td><th scope="row">${label}</th><td class="amount">${amount}</td></tr>`

function periodOf ({ period_start, period_end }: InvoiceLine): string {
  if (period_start === null || period_end === null || period_start === period_end) return ''
  return `${day(period_start)} – ${day(period_end)}`
}

function stateOf ({ status, paid_at }: PrintedInvoice): string {
  if (status === 'paid') return paid_at === null ? 'Paid' : `Paid on ${day(paid_at)}`
  return status === 'void' ? 'Void' : ''
}
