import PDFDocument from 'pdfkit'
import type { InvoiceLine, InvoiceStatus, Party } from '../../schemas/billing.ts'
import { formatMoney } from '../rules/billing.ts'
import { runsOf, type Face, type Weight } from './fonts.ts'

/** What an invoice says. */
export interface PrintedInvoice {
  number: string
  status: InvoiceStatus
  currency: string
  lines: InvoiceLine[]
  subtotal: number
  discount: number
  credit: number
  total: number
  seller: Party
  buyer: Party
  issued_at: Date
  due_at: Date
  paid_at: Date | null
  /** What went back, of what was paid. */
  paid_back: number
  /** What the buyer wants to read on it. */
  reference: string | null
  /** What the operator writes on each; may be empty. */
  note: string
}

const PAGE = { width: 595.28, height: 841.89, margin: 56 }
const LEFT = PAGE.margin
const RIGHT = PAGE.width - PAGE.margin
const BOTTOM = PAGE.height - PAGE.margin - 24
const SIZE = 9.5
const LEADING = 1.45
// What the names of facts take of their column.
const LABEL = 60
const GREY = '#5f6673'
const RULE = '#c9ced6'

/** An invoice as somebody sends it to an accountant: A4, with its fonts inside. */
export async function renderInvoice (invoice: PrintedInvoice, paymentDetails: string): Promise<Buffer> {
  const pdf = new PDFDocument({
    size: 'A4',
    margin: 0,
    bufferPages: true,
    lang: 'en',
    font: null as unknown as string,
    info: {
      Title: `Invoice ${invoice.number}`,
      Author: invoice.seller.name,
      CreationDate: invoice.issued_at,
      ModDate: invoice.paid_at ?? invoice.issued_at
    }
  })
  const parts: Buffer[] = []
  const ended = new Promise<void>((resolve, reject) => {
    pdf.on('data', (part: Buffer) => { parts.push(part) })
    pdf.on('end', resolve)
    pdf.on('error', reject)
  })
  const pen = createPen(pdf)
  draw(pen, invoice, paymentDetails)
  numberPages(pen, invoice.number)
  pdf.end()
  await ended
  return Buffer.concat(parts)
}

interface Style { size?: number, weight?: Weight, color?: string, align?: 'left' | 'right' }

// Writes lines of mixed scripts: the library itself has one font for each.
function createPen (pdf: PDFKit.PDFDocument) {
  const known = new Set<string>()
  const use = ({ name, bytes }: Face, size: number) => {
    if (!known.has(name)) pdf.registerFont(name, bytes as unknown as ArrayBuffer)
    known.add(name)
    return pdf.font(name).fontSize(size)
  }

  const width = (text: string, { size = SIZE, weight = 'regular' }: Style = {}) =>
    runsOf(text, weight).reduce((sum, run) => sum + use(run.face, size).widthOfString(run.text, { features: [] }), 0)

  function line (text: string, x: number, y: number, style: Style = {}) {
    const { size = SIZE, weight = 'regular', color = '#14181f', align = 'left' } = style
    let at = align === 'right' ? x - width(text, style) : x
    for (const run of runsOf(text, weight)) {
      use(run.face, size).fillColor(color)
      // Shaped as one: the words of a script that goes from right to left stay in their order.
      const options = { features: [], lineBreak: false, baseline: 'alphabetic' as const }
      pdf.text(run.text, at, y + size, options)
      at += pdf.widthOfString(run.text, { features: [] })
    }
  }

  // Lines that fit: broken at spaces, and inside of words that are longer than a line.
  function wrapped (text: string, room: number, style: Style = {}): string[] {
    const lines: string[] = []
    for (const paragraph of text.split('\n')) {
      let current = ''
      for (const word of paragraph.split(/(?<= )/)) {
        if (width((current + word).trimEnd(), style) <= room) {
          current += word
          continue
        }
        if (current !== '') lines.push(current.trimEnd())
        current = ''
        let taken = 0
        for (const character of word) {
          const its = width(character, style)
          if (current !== '' && taken + its > room) {
            lines.push(current)
            current = ''
            taken = 0
          }
          current += character
          taken += its
        }
      }
      lines.push(current.trimEnd())
    }
    return lines
  }

  /** Where something of a height goes: here, or on the next page where this one has no room for it. */
  function place (y: number, height: number): number {
    if (y + height <= BOTTOM) return y
    pdf.addPage()
    return PAGE.margin
  }

  /** Writes columns side by side from the top down, on as many pages as they take; where the next line goes. */
  function columns (room: number, y: number, ...texts: { x: number, paragraphs: [string, Style?][] }[]): number {
    const all = texts.map(({ x, paragraphs }) => paragraphs.filter(([text]) => text !== '').flatMap(([text, style]) =>
      wrapped(text, room, style).map((one) => ({ one, x, style }))))
    const rows = Math.max(...all.map(({ length }) => length))
    for (let row = 0; row < rows; row++) {
      y = place(y, SIZE * LEADING)
      for (const { one, x, style } of all.flatMap((lines) => lines[row] ?? [])) line(one, x, y, style)
      y += SIZE * LEADING
    }
    return y
  }

  /** Writes a text from the top down; where the next line goes. */
  const block = (text: string, x: number, y: number, room: number) => columns(room, y, { x, paragraphs: [[text]] })

  function rule (y: number) {
    pdf.moveTo(LEFT, y).lineTo(RIGHT, y).lineWidth(0.7).strokeColor(RULE).stroke()
  }

  return { pdf, line, wrapped, place, columns, block, rule }
}
type Pen = ReturnType<typeof createPen>

const day = (moment: Date | string) => new Date(moment).toISOString().slice(0, 10)

function draw (pen: Pen, invoice: PrintedInvoice, paymentDetails: string) {
  const { pdf, line, place, columns, block, rule } = pen
  const { number, currency, seller, buyer } = invoice
  const money = (amount: number) => formatMoney(amount, currency)
  line('Invoice', LEFT, PAGE.margin, { size: 24, weight: 'bold' })
  line(stateOf(invoice), RIGHT, PAGE.margin + 8, { size: 12, weight: 'bold', color: GREY, align: 'right' })

  const column = (RIGHT - LEFT) / 3
  const top = PAGE.margin + 58
  const facts: [string, string][] = [
    ['Number', number], ['Date', day(invoice.issued_at)], ['Due', day(invoice.due_at)], ['Currency', currency]
  ]
  let y = top
  if (invoice.reference !== null) facts.push(['Reference', invoice.reference])
  for (const [label, value] of facts) {
    line(label, LEFT + 2 * column, y, { color: GREY })
    for (const one of pen.wrapped(value, column - LABEL)) {
      line(one, RIGHT, y, { align: 'right' })
      y += SIZE * LEADING
    }
    y += 1
  }
  const parties = ([['From', seller], ['To', buyer]] as const).map(([label, { name, address, tax_id }], i) => {
    const x = LEFT + i * column
    line(label, x, top, { color: GREY })
    const paragraphs: [string, Style?][] =
      [[name, { weight: 'bold' }], [address], [tax_id === '' ? '' : `Tax id ${tax_id}`]]
    return { x, paragraphs }
  })
  const below = columns(column - 16, top + 15, ...parties)
  // The facts are on the first page.
  y = place((pdf.bufferedPageRange().count > 1 ? below : Math.max(y, below)) + 26, 60)
  const period = RIGHT - 250
  line('Description', LEFT, y, { color: GREY })
  line('Period', period, y, { color: GREY })
  line('Amount', RIGHT, y, { color: GREY, align: 'right' })
  y += 17
  rule(y)
  y += 8
  for (const { description, amount, period_start, period_end } of invoice.lines) {
    y = place(y, pen.wrapped(description, period - LEFT - 12).length * SIZE * LEADING)
    const isPeriod = period_start !== null && period_end !== null && period_start !== period_end
    if (isPeriod) line(`${day(period_start)} – ${day(period_end)}`, period, y)
    line(money(amount), RIGHT, y, { align: 'right' })
    y = block(description, LEFT, y, period - LEFT - 12) + 5
  }
  y = place(y, 150)
  rule(y)
  y += 10
  const sums: [string, number][] = [
    ['Subtotal', invoice.subtotal], ['Coupon', -invoice.discount], ['Credit', -invoice.credit]
  ]
  for (const [label, amount] of sums) {
    if (amount === 0 && label !== 'Subtotal') continue
    line(label, period, y, { color: GREY })
    line(money(amount), RIGHT, y, { align: 'right' })
    y += SIZE * LEADING + 2
  }
  y += 3
  line('Total', period, y, { size: 12, weight: 'bold' })
  line(money(invoice.total), RIGHT, y, { size: 12, weight: 'bold', align: 'right' })
  y += 24
  if (invoice.paid_back > 0) {
    line('Paid back', period, y, { color: GREY })
    line(money(-invoice.paid_back), RIGHT, y, { align: 'right' })
    y += SIZE * LEADING + 2
  }
  if (invoice.note !== '') y = block(invoice.note, LEFT, place(y + 8, SIZE * LEADING), RIGHT - LEFT)
  if (invoice.status !== 'open' || paymentDetails === '') return
  y = place(y + 20, 18 + SIZE * LEADING)
  line(`Please pay ${money(invoice.total)} by ${day(invoice.due_at)}, with the number ${number}:`, LEFT, y)
  block(paymentDetails, LEFT, y + 18, RIGHT - LEFT)
}

function stateOf ({ status, paid_at }: PrintedInvoice): string {
  if (status === 'paid') return paid_at === null ? 'Paid' : `Paid on ${day(paid_at)}`
  return status === 'void' ? 'Void' : ''
}

function numberPages ({ pdf, line }: Pen, number: string) {
  const { start, count } = pdf.bufferedPageRange()
  for (let i = 0; i < count; i++) {
    pdf.switchToPage(start + i)
    line(`${number} · page ${i + 1} of ${count}`, RIGHT, PAGE.height - PAGE.margin, {
      size: 8, color: GREY, align: 'right'
    })
  }
}
