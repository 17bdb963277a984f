import type { FastifyRequest } from 'fastify'
import { Invoice, InvoiceFile, InvoiceItem, InvoiceParams, LatestInvoices } from '../../../schemas/billing.ts'
import { ListQuery } from '../../../schemas/shapes.ts'
import { INVOICE_POLICY, renderInvoice } from '../../billing/invoice-page.ts'
import { principalOf } from '../../http/routes/actor.ts'
import type { Domain } from '../../http/routes/types.ts'
import { findInvoice, listInvoices, type InvoiceRow } from '../../repositories/billing/invoices.ts'
import { invoiceNumber } from '../../rules/billing.ts'
import { fail } from '../../rules/api-error.ts'
import { answerPage, pageMeta } from '../../rules/pagination.ts'

const LATEST = { page: 1, per_page: 50 }
const READ = { access: 'billing:read', at: 'organization', whenInactive: true } as const

export const invoices: Domain = async (app) => {
  const requireInvoice = async (request: FastifyRequest, id: string) =>
    await findInvoice(app.reads, principalOf(request).organization.id, id) ?? fail('not_found')

  app.get('/organizations/:organization/billing/invoices', {
    config: READ,
    schema: {
      operationId: 'listInvoices',
      summary: 'List invoices, newest first',
      description: 'Contains the invoices of subscriptions and of single charges.',
      querystring: ListQuery,
      response: { 200: InvoiceItem.list }
    },
    handler: async (request) => answerPage(request.query, toItem, (page) =>
      listInvoices(app.pages, principalOf(request).organization.id, page))
  })

  app.get('/organizations/:organization/invoices', {
    config: READ,
    schema: {
      operationId: 'listLatestInvoices',
      summary: 'List the latest 50 invoices',
      description: 'The same invoices as in the list, newest first, without pages.',
      response: { 200: LatestInvoices }
    },
    handler: async (request) => {
      const { rows, total } = await listInvoices(app.pages, principalOf(request).organization.id, LATEST)
      return { data: rows.map(toItem), meta: pageMeta(LATEST, total, rows.length) }
    }
  })

  app.get('/organizations/:organization/billing/invoices/:invoice', {
    config: READ,
    schema: {
      operationId: 'getInvoice',
      summary: 'Get an invoice with its lines',
      description: 'Amounts are in the smallest unit of the currency, such as cents.',
      params: InvoiceParams,
      response: { 200: Invoice.one }
    },
    handler: async (request) => ({ data: toItem(await requireInvoice(request, request.params.invoice)) })
  })

  app.get('/organizations/:organization/billing/invoices/:invoice/download', {
    config: { ...READ, limitOfEffect: 'invoice_files' },
    schema: {
      operationId: 'downloadInvoice',
      summary: 'Download an invoice as a printable HTML page',
      description: 'For printing, or for saving as a PDF file.',
      params: InvoiceParams,
      response: { 200: InvoiceFile }
    },
    handler: async (request, reply) => {
      const invoice = await requireInvoice(request, request.params.invoice)
      const number = invoiceNumber(invoice.organization_id, invoice.number)
      await app.countEffect(request, reply)
      return reply.type('text/html; charset=utf-8').headers({
        'content-disposition': `attachment; filename="invoice-${number}.html"`,
        'content-security-policy': `${INVOICE_POLICY}; frame-ancestors 'none'`
      }).send(renderInvoice({ ...invoice, number }, app.invoicing.paymentDetails))
    }
  })
}

// `row` has `lines`, which the response schemas of lists drop.
const toItem = ({ organization_id, id, number, ...row }: InvoiceRow) => ({
  type: 'invoices' as const, id, attributes: { ...row, number: invoiceNumber(organization_id, number) }
})
