/** CSV as the gateway writes it (RFC 4180). */

/** Returns the rows by the names of their columns. */
export function parseCsv(text: string): Record<string, string>[] {
  const [head, ...rows] = cells(text);
  if (!head) return [];
  return rows.map((row) => Object.fromEntries(head.map((name, i) => [name, row[i] ?? ""])));
}

function cells(text: string): string[][] {
  const rows: string[][] = [];
  let row: string[] = [];
  let cell = "";
  let quoted = false;
  for (let i = 0; i < text.length; i++) {
    const c = text[i]!;
    if (quoted) {
      if (c !== '"') cell += c;
      else if (text[i + 1] === '"') cell += text[++i]!;
      else quoted = false;
    } else if (c === '"') quoted = true;
    else if (c === ",") {
      row.push(cell);
      cell = "";
    } else if (c === "\n") {
      row.push(cell.replace(/\r$/, ""));
      rows.push(row);
      row = [];
      cell = "";
    } else cell += c;
  }
  if (cell !== "" || row.length > 0) rows.push([...row, cell]);
  return rows;
}
