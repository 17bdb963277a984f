import { encode } from 'uqr'
import { html, type Html } from '../../rules/formats/html.ts'

/** The quiet zone in modules, which scanners need (ISO/IEC 18004). */
const QUIET_ZONE = 4

/** A QR code as inline SVG, without scripts or external resources. */
export function qrCode (text: string, label: string): Html {
  const { data, size } = encode(text, { ecc: 'M', border: QUIET_ZONE })
  // Draw adjacent dark modules of a row as one bar.
  const bars = data.flatMap((row, y) => row.flatMap((isDark, x) => {
    if (!isDark || row[x - 1] === true) return []
    const end = row.indexOf(false, x)
    return [`M${x} ${y}h${end - x}v1h${x - end}z`]
  }))
  return html`<svg class="qr" role="img" aria-label="${label}" viewBox="0 0 ${size} ${size}" shape-rendering="crispEdges">
<rect width="${size}" height="${size}" fill="#fff"/><path d="${bars.join('')}" fill="#000"/>
</svg>`
}
