import type { ErrorCode } from '../../schemas/errors.ts'

// Malicious requests, for tests of the service in this process and of a server with other clients.

/** Small bodies that are expensive to parse, with their names. All of them get 422. */
export const PATHOLOGICAL: readonly (readonly [name: string, text: string])[] = [
  ['500,000 arrays deep', '['.repeat(500_000)],
  ['500,000 objects deep', '{"a":'.repeat(300_000) + '1' + '}'.repeat(300_000)],
  ['21 deep', `{"name":${'['.repeat(20)}${']'.repeat(20)}}`],
  ['100,000 keys', `{${Array.from({ length: 100_000 }, (_, i) => `"k${i}":1`).join(',')}}`],
  ['a long key', `{"${'k'.repeat(1_000_000)}":1}`],
  ['a long key around a NUL', `{"${'k'.repeat(1_000_000)}":"\\u0000"}`],
  ['__proto__', '{"name":"x","__proto__":{"polluted":true}}'],
  ['constructor.prototype', '{"name":"x","constructor":{"prototype":{"polluted":true}}}'],
  ['toString', '{"name":"x","toString":1,"valueOf":1,"hasOwnProperty":1}']
]

/** Values of `X-Forwarded-For` that a client may send through a proxy. */
export const FORWARDED: readonly string[] = [
  '', ',', ', , ,', 'garbage', '1.2.3.4:5678', '[::1]:80', '999.999.999.999', 'x'.repeat(5000),
  '::ffff:1.2.3.4, 10.0.0.9', Array(500).fill('1.1.1.1').join(','), '\u001b[31m', '1.2.3.4\t'
]

/**
 * Requests that are invalid HTTP or exceed a limit, each with a name and the expected response. The server closes the
 * connection after the response.
 *
 * @param post the head of a valid request with a body, without the headers for the length of the body
 * @param most maximum size of a body in bytes
 */
export const badlyFramed = (
  post: string, most: number
): readonly (readonly [name: string, request: string, status: number, code: ErrorCode])[] => [
  ['not HTTP', 'hello\r\n\r\n', 400, 'malformed_request'],
  ['two lengths', `${post}Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}`, 400, 'malformed_request'],
  [
    'a length and chunks', `${post}Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n`, 400,
    'malformed_request'
  ],
  ['chunks that are not last', `${post}Transfer-Encoding: chunked, identity\r\n\r\n{}`, 400, 'malformed_request'],
  ['a bad chunk', `${post}Transfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n0\r\n\r\n`, 400, 'malformed_request'],
  ['a space before the colon', 'GET /healthz HTTP/1.1\r\nHost: x\r\nX-A : 1\r\n\r\n', 400, 'malformed_request'],
  ['a folded header', 'GET /healthz HTTP/1.1\r\nHost: x\r\nX-A: 1\r\n 2\r\n\r\n', 400, 'malformed_request'],
  ['a NUL in a header', 'GET /healthz HTTP/1.1\r\nHost: x\r\nX-A: \0\r\n\r\n', 400, 'malformed_request'],
  [
    'a PROXY line', 'PROXY TCP4 1.1.1.1 2.2.2.2 1 2\r\nGET /healthz HTTP/1.1\r\nHost: x\r\n\r\n', 400,
    'malformed_request'
  ],
  ['a negative length', `${post}Content-Length: -1\r\n\r\n`, 400, 'malformed_request'],
  [
    'headers of 20 KB', `GET /healthz HTTP/1.1\r\nHost: x\r\nX-A: ${'a'.repeat(20_000)}\r\n\r\n`, 431,
    'header_fields_too_large'
  ],
  ['a target of 20 KB', `GET /${'a'.repeat(20_000)} HTTP/1.1\r\nHost: x\r\n\r\n`, 431, 'header_fields_too_large'],
  [
    '3,000 headers', `GET /healthz HTTP/1.1\r\nHost: x\r\n${'a:\r\n'.repeat(3000)}\r\n`, 431,
    'header_fields_too_large'
  ],
  [
    '101 headers', `GET /healthz HTTP/1.1\r\nConnection: close\r\nHost: x\r\n${'a:\r\n'.repeat(99)}\r\n`, 431,
    'header_fields_too_large'
  ],
  ['10 GiB announced', `${post}Content-Length: 10737418240\r\n\r\n{`, 413, 'payload_too_large'],
  [
    'chunks without end',
    `${post}Transfer-Encoding: chunked\r\n\r\n${`1000\r\n${'x'.repeat(4096)}\r\n`.repeat(2 * most / 4096)}`, 413,
    'payload_too_large'
  ]
]
