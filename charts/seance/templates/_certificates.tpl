{{/*
Certificates and keys that the chart makes, and keeps: what is in the cluster is read and written again as it is.

A certificate authority has a generation. When the value is raised, three upgrades make the change, so that nobody ever
meets a certificate that it can't trust yet:

  1. the upgrade with the new generation adds the new CA to the bundle; the old one still signs;
  2. the next upgrade has the new CA sign; the bundle holds both;
  3. the one after that leaves the old CA out.

Between the first and the second, wait until what trusts the bundle has it: the kubelet takes up to two minutes.
*/}}

{{/* Fills .Values.made.<kind> once a render: (dict "root" . "kind" "link" "tls" .Values.link.tls "names" (list …) "addresses" (list …)). */}}
{{- define "seance.makeCertificate" -}}
{{- $root := .root -}}
{{- if not (hasKey $root.Values "made") -}}{{- $_ := set $root.Values "made" dict -}}{{- end -}}
{{- if not (hasKey $root.Values.made .kind) -}}
{{- $name := printf "%s-%s" (include "seance.fullname" $root) .kind -}}
{{- $kept := (lookup "v1" "Secret" $root.Release.Namespace (printf "%s-ca" $name)).data | default dict -}}
{{- $leaf := lookup "v1" "Secret" $root.Release.Namespace (printf "%s-tls" $name) | default dict -}}
{{- $notes := ($leaf.metadata | default dict).annotations | default dict -}}
{{- $days := int .tls.validityDays -}}
{{- $wanted := int .tls.caGeneration -}}
{{- $commonName := printf "%s %s CA" $name $root.Release.Namespace -}}
{{- $names := printf "%s|%s" (join "," .names) (join "," .addresses) | sha256sum | trunc 16 -}}
{{- $ca := dict -}}
{{- $signer := dict -}}
{{- $old := "" -}}
{{- $generation := $wanted -}}
{{- $signedBy := $wanted -}}
{{- if not (index $kept "ca.key") -}}
  {{- $made := genCAWithKey (printf "%s %d" $commonName $wanted) $days (genPrivateKey "ecdsa") -}}
  {{- $ca = dict "cert" $made.Cert "key" $made.Key -}}
  {{- $signer = $made -}}
{{- else -}}
  {{- $have := index $kept "generation" | b64dec | int -}}
  {{- $signedBy = index $notes "seance.dev/ca-generation" | default "0" | int -}}
  {{- $old = index $kept "previous.crt" | default "" | b64dec -}}
  {{- if lt $wanted $have -}}
    {{- fail (printf "%s.tls.caGeneration is %d, and the cluster has generation %d: generations only go up" .kind $wanted $have) -}}
  {{- else if eq $wanted $have -}}
    {{- $ca = dict "cert" (index $kept "ca.crt" | b64dec) "key" (index $kept "ca.key" | b64dec) -}}
    {{- $signer = buildCustomCert (index $kept "ca.crt") (index $kept "ca.key") -}}
    {{- if eq $signedBy $have -}}{{- $old = "" -}}{{- end -}}
    {{- $generation = $have -}}
  {{- else -}}
    {{- if ne $signedBy $have -}}
      {{- fail (printf "%s.tls.caGeneration is %d while the change to generation %d isn't over: upgrade once with %d before" .kind $wanted $have $have) -}}
    {{- end -}}
    {{- $made := genCAWithKey (printf "%s %d" $commonName $wanted) $days (genPrivateKey "ecdsa") -}}
    {{- $ca = dict "cert" $made.Cert "key" $made.Key -}}
    {{- $signer = buildCustomCert (index $kept "ca.crt") (index $kept "ca.key") -}}
    {{- $old = index $kept "ca.crt" | b64dec -}}
    {{- $generation = $have -}}
  {{- end -}}
{{- end -}}
{{- $issued := index $notes "seance.dev/issued" | default "0" | int64 -}}
{{- $now := now | unixEpoch | int64 -}}
{{- $isYoung := lt (sub $now $issued) (mul $days 43200) -}}
{{- $stands := and $leaf.data (eq (index $notes "seance.dev/names" | default "") $names) (eq $signedBy $generation) $isYoung -}}
{{- $certificate := dict -}}
{{- if $stands -}}
  {{- $certificate = dict "cert" (index $leaf.data "tls.crt" | b64dec) "key" (index $leaf.data "tls.key" | b64dec) -}}
{{- else -}}
  {{- $made := genSignedCertWithKey $name .addresses .names $days $signer (genPrivateKey "ecdsa") -}}
  {{- $certificate = dict "cert" $made.Cert "key" $made.Key -}}
  {{- $issued = $now -}}
{{- end -}}
{{- $bundle := $ca.cert -}}
{{- if $old -}}{{- $bundle = printf "%s\n%s\n" (trim $ca.cert) (trim $old) -}}{{- end -}}
{{- $all := dict "ca" $ca "old" $old "caGeneration" $wanted "certificate" $certificate "bundle" $bundle "issued" $issued "names" $names "generation" $generation -}}
{{- $_ := set $root.Values.made .kind $all -}}
{{- end -}}
{{- end -}}

{{/* The two Secrets of a kind, once seance.makeCertificate was called: (dict "root" . "kind" "link"). */}}
{{- define "seance.certificateSecrets" -}}
{{- $made := index .root.Values.made .kind -}}
apiVersion: v1
kind: Secret
metadata:
  name: {{ include "seance.fullname" .root }}-{{ .kind }}-ca
  namespace: {{ .root.Release.Namespace }}
  labels: {{- include "seance.labels" .root | nindent 4 }}
type: Opaque
data:
  ca.crt: {{ $made.ca.cert | b64enc }}
  ca.key: {{ $made.ca.key | b64enc }}
  previous.crt: {{ $made.old | b64enc | quote }}
  generation: {{ $made.caGeneration | toString | b64enc }}
---
apiVersion: v1
kind: Secret
metadata:
  name: {{ include "seance.fullname" .root }}-{{ .kind }}-tls
  namespace: {{ .root.Release.Namespace }}
  labels: {{- include "seance.labels" .root | nindent 4 }}
  annotations:
    seance.dev/ca-generation: {{ $made.generation | quote }}
    seance.dev/issued: {{ $made.issued | toString | quote }}
    seance.dev/names: {{ $made.names | quote }}
type: kubernetes.io/tls
data:
  tls.crt: {{ $made.certificate.cert | b64enc }}
  tls.key: {{ $made.certificate.key | b64enc }}
  ca.crt: {{ $made.bundle | b64enc }}
{{- end -}}

{{- define "seance.makeLinkCertificate" -}}
{{- include "seance.makeCertificate" (dict "root" . "kind" "link" "tls" .Values.link.tls "names" (list "seance-link") "addresses" list) -}}
{{- end -}}

{{- define "seance.apiNames" -}}
{{- $name := include "seance.fullname" . -}}
{{- $inside := printf "%s.%s" $name .Release.Namespace -}}
{{- concat (list $name $inside (printf "%s.svc" $inside) (printf "%s.svc.%s" $inside .Values.clusterDomain) "localhost") .Values.api.tls.extraNames | join "," -}}
{{- end -}}

{{- define "seance.makeApiCertificate" -}}
{{- $addresses := concat (list "127.0.0.1") .Values.api.tls.extraAddresses -}}
{{- with .Values.api.service.clusterIP }}{{- $addresses = append $addresses . -}}{{- end -}}
{{- include "seance.makeCertificate" (dict "root" . "kind" "api" "tls" .Values.api.tls "names" (concat list (splitList "," (include "seance.apiNames" .))) "addresses" ($addresses | uniq)) -}}
{{- end -}}

{{/* The keys that seal tickets: the one that seals, and the one before it, whose tickets are still taken. */}}
{{- define "seance.makeTicketKeys" -}}
{{- if not (hasKey .Values "made") -}}{{- $_ := set .Values "made" dict -}}{{- end -}}
{{- if not (hasKey .Values.made "tickets") -}}
{{- $kept := (lookup "v1" "Secret" .Release.Namespace (printf "%s-ticket-keys" (include "seance.fullname" .))).data | default dict -}}
{{- $wanted := int .Values.link.ticketKeyGeneration -}}
{{- $keys := splitList "\n" (index $kept "keys" | default "" | b64dec) -}}
{{- $current := first $keys -}}
{{- $previous := rest $keys | join "" -}}
{{- $have := index $kept "generation" | default "" | b64dec | int -}}
{{- if and $current (lt $wanted $have) -}}
  {{- fail (printf "link.ticketKeyGeneration is %d, and the cluster has generation %d: generations only go up" $wanted $have) -}}
{{- end -}}
{{- if or (not $current) (gt $wanted $have) -}}
  {{- $previous = $current -}}
  {{- $current = randBytes 32 -}}
{{- end -}}
{{- $_ := set .Values.made "tickets" (dict "current" $current "previous" $previous "generation" $wanted) -}}
{{- end -}}
{{- end -}}
