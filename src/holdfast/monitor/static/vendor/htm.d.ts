declare const htm: { bind(h: unknown): (strings: TemplateStringsArray, ...values: unknown[]) => any };
export default htm;
