/* global SwaggerUIBundle */
// Swagger's page of this server's API.
SwaggerUIBundle({
  url: "openapi.json",
  dom_id: "#swagger-ui",
  deepLinking: true,
  layout: "BaseLayout",
  presets: [SwaggerUIBundle.presets.apis, SwaggerUIBundle.SwaggerUIStandalonePreset],
  showExtensions: true,
  showCommonExtensions: true,
});
